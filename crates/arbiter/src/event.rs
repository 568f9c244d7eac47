//! What the arbiter is told, and why it may refuse.

use crate::admission::Overcommitted;
use crate::terms::Terms;
use crate::{DeviceId, Nanos, TenantId};

/// Something that happened. Times are given beside it.
#[derive(Clone, Debug)]
pub enum Event {
    /// A tenant is registered, idle. One with several devices runs on all of them or on none: a gang. Devices that a
    /// tenant uses independently are registered as tenants of their own.
    Arrived {
        /// A number that no other registered tenant has.
        tenant: TenantId,
        /// Its devices, at least one, each once.
        devices: Vec<DeviceId>,
        /// What it is promised on each of them.
        terms: Terms,
    },
    /// It has something to launch and no lease.
    Ready {
        /// Who.
        tenant: TenantId,
    },
    /// It has nothing in flight and nothing to launch: it gives its lease back and asks for none.
    Idle {
        /// Who.
        tenant: TenantId,
    },
    /// Nothing of a lease is in flight on this device any more, and the tenant wants another.
    Released {
        /// Who.
        tenant: TenantId,
        /// Where.
        device: DeviceId,
        /// The tenant's busy time on the device, as in [`Event::Report`].
        busy: Nanos,
    },
    /// What a tenant says of itself; it can only cost it.
    Report {
        /// Who.
        tenant: TenantId,
        /// Where.
        device: DeviceId,
        /// Nanoseconds that its work has kept the device busy since it arrived. Goes up only: less than before is ignored.
        busy: Nanos,
        /// Its typical kernel, nanoseconds; 0 when it is not known.
        kernel: Nanos,
    },
    /// It has other terms from now on, on each of its devices.
    Resized {
        /// Who.
        tenant: TenantId,
        /// The new terms.
        terms: Terms,
    },
    /// It left, or died and its contexts are gone: nothing of it is in flight.
    Died {
        /// Who.
        tenant: TenantId,
    },
    /// Tenants' memory on the device is paged: to bring one's working set back takes this long, and the quantum grows so
    /// that no more than about a tenth goes into it. 0 when it no longer is.
    Thrash {
        /// Where.
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
    /// Nobody has this number.
    #[error("Tenant {} is not registered", .0.0)]
    Unknown(TenantId),
}
