//! What the arbiter decides.

use crate::{DeviceId, Nanos, TenantId};

/// An instruction to the agent's loop. Times are of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The tenant may launch on the device. The same epoch again changes the end or the bound of that lease.
    Grant {
        /// The tenant.
        tenant: TenantId,
        /// The device.
        device: DeviceId,
        /// Number of the lease; never used twice, the same on all devices of a gang.
        epoch: u64,
        /// Nothing is launched from then on. [`crate::FOREVER`] while no other tenant wants the device.
        until: Nanos,
        /// Nanoseconds of work that may be in flight. [`crate::FOREVER`] for a tenant alone on its device.
        in_flight: Nanos,
    },
    /// The tenant launches nothing from now on.
    Revoke {
        /// The tenant.
        tenant: TenantId,
        /// The device.
        device: DeviceId,
        /// The lease.
        epoch: u64,
    },
    /// Work is still in flight though the lease has ended some time ago. Sent once for each lease: others wait for it.
    Overdue {
        /// The tenant.
        tenant: TenantId,
        /// The device.
        device: DeviceId,
        /// The lease.
        epoch: u64,
        /// When the lease ended.
        ended: Nanos,
    },
    /// The device goes to others although the tenant's work is still in flight. The tenant is charged until it reports
    /// that no work is in flight, and gets no lease before.
    Expire {
        /// The tenant.
        tenant: TenantId,
        /// The device.
        device: DeviceId,
        /// The lease.
        epoch: u64,
    },
}
