//! What the arbiter is told, and why it may refuse.

use crate::admission::Overcommitted;
use crate::terms::Terms;
use crate::{DeviceId, Nanos, TenantId};

/// Something that happened. Times are given beside it.
#[derive(Clone, Debug)]
pub enum Event {
    /// A tenant is registered, idle. A tenant with several devices runs on all of them or on none: a gang. Devices that
    /// a tenant uses independently are registered as tenants of their own.
    Arrived {
        /// A number that no other registered tenant has.
        tenant: TenantId,
        /// Its devices, at least one, each once.
        devices: Vec<DeviceId>,
        /// What it is promised on each of them.
        terms: Terms,
    },
    /// It is this owner's, told behind its arrival and once. It takes over what the owner's former tenants owed on its devices, in
    /// proportion to its part. Those that no event says this of take over nothing.
    Owned {
        /// The tenant.
        tenant: TenantId,
        /// Its owner, as the caller numbers them.
        owner: u64,
    },
    /// It has something to launch and no lease.
    Ready {
        /// The tenant.
        tenant: TenantId,
    },
    /// It has nothing in flight and nothing to launch: it gives its lease back and asks for none.
    Idle {
        /// The tenant.
        tenant: TenantId,
    },
    /// Nothing of a lease is in flight on this device any more, and the tenant wants another.
    Released {
        /// The tenant.
        tenant: TenantId,
        /// The device.
        device: DeviceId,
        /// The tenant's busy time on the device, as in [`Event::Report`].
        busy: Nanos,
    },
    /// A tenant's report of itself, which can only increase its charge.
    Report {
        /// The tenant.
        tenant: TenantId,
        /// The device.
        device: DeviceId,
        /// Nanoseconds that its work has kept the device busy since it arrived. It only goes up: less than before is
        /// ignored.
        busy: Nanos,
        /// Its typical kernel, nanoseconds; 0 when it is not known.
        kernel: Nanos,
        /// Nanoseconds of its work in flight, by its own estimate. After the end of a lease that much work is waited
        /// for, and paid for.
        in_flight: Nanos,
    },
    /// It has other terms from now on, on each of its devices.
    Resized {
        /// The tenant.
        tenant: TenantId,
        /// The new terms.
        terms: Terms,
    },
    /// It left, or died and its contexts are gone: nothing of it is in flight.
    Died {
        /// The tenant.
        tenant: TenantId,
    },
    /// Tenants' memory on the device is paged. To bring one's working set back takes this long, and the quantum grows
    /// so that no more than about a tenth goes into it. 0 when the memory is no longer paged.
    Thrash {
        /// The device.
        device: DeviceId,
        /// Nanoseconds that a change of holder costs.
        refill: Nanos,
    },
    /// Nothing but time.
    Time,
}

/// Why an event was refused. The arbiter is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The shares do not fit.
    #[error(transparent)]
    Overcommitted(#[from] Overcommitted),
    /// A hard cap or the latency class without a share to hold it to.
    #[error("A hard cap and the latency class need a share")]
    NoShare,
    /// No device, an unknown one, or one twice.
    #[error("No such list of devices")]
    Devices,
    /// The number is taken.
    #[error("Tenant {} is registered already", .0.0)]
    Known(TenantId),
    /// No tenant has this number.
    #[error("Tenant {} is not registered", .0.0)]
    Unknown(TenantId),
}
