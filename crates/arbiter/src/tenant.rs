//! A tenant as the arbiter keeps it.

use crate::bucket::Bucket;
use crate::longest::OfTenant;
use crate::server::Server;
use crate::terms::Terms;
use crate::virtual_time::VirtualTime;
use crate::{Nanos, TenantId};

/// Where a tenant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It wants nothing.
    Away,
    /// It wants to run and its hard cap does not let it.
    Throttled,
    /// It waits its turn by virtual time.
    Queued,
    /// It waits, before all best-effort tenants, by its server's deadline.
    Urgent,
    /// A gang whose devices are being brought together.
    Claiming,
    /// It has a lease on at least one device, and the device waits for it.
    Holding,
    /// Its lease expired with work in flight.
    Stuck,
}

/// A tenant on one of its devices: what takes the lease of that device.
#[derive(Clone, Debug)]
pub(crate) struct Leaseholder {
    pub device: usize,
    pub time: VirtualTime,
    /// Device time it was owed when it left the queue.
    pub owed: Nanos,
    pub held: Option<Held>,
    /// The tenant's typical kernel by its own word.
    pub kernel: Nanos,
    /// Its work in flight by its own word, when it last spoke of it.
    pub in_flight: Nanos,
    /// How far it outlasted its leases of late.
    pub overrun: OfTenant,
    /// Busy time it has reported in all.
    pub reported: Nanos,
    /// The same when a report last came with nothing in flight, and what it was charged since. A report in between lags
    /// behind what runs, and not every lease ends with one.
    pub squared: Nanos,
    pub paid: Nanos,
    /// Its lease before this one ended with such a report.
    pub is_squared: bool,
    /// Everything it was charged here.
    pub charged: u128,
    /// How long it held leases here that were its to use, by the clock, leaps of that included. What it was charged beyond that is
    /// its own word.
    pub leased: u128,
    /// How long it held a lease here while the work of the tenant before was still in flight. It was not charged for that.
    pub waited: u128,
    /// How long its leases had expired and were not released. By its own word work of them was in flight.
    pub outlasted: u128,
    /// The part of its charge in which others had the device in turns with it, because a lease had expired.
    pub shared: Nanos,
}

impl Leaseholder {
    /// It held a lease for so long that was its to use, or one that had expired.
    pub fn note_held(&mut self, is_stuck: bool, time: Nanos) {
        let of = if is_stuck {
            &mut self.outlasted
        } else {
            &mut self.leased
        };
        *of += u128::from(time);
    }
}

/// An unreleased lease on one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub charged_to: Nanos,
}

/// What a gang's leaseholders have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub epoch: u64,
    pub since: Nanos,
    pub until: Nanos,
    /// Granted from a server's budget, or to a gang that waited too long.
    pub urgent: bool,
    /// By when an urgent one was to run; later deadlines do not take its devices.
    pub deadline: Nanos,
    /// It will not be renewed.
    pub ending: bool,
    /// It was reported as overdue.
    pub told: bool,
}

/// Order among the claims of gangs: urgent ones first, by their deadline, then the others, by virtual time. It is one
/// order for all devices. With an order for each device, three gangs could wait for each other in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimKey {
    /// 0: urgent; 1: best effort.
    pub rank: u8,
    /// Of an urgent one; otherwise 0.
    pub deadline: Nanos,
    pub time: VirtualTime,
    pub number: u64,
}

/// A gang's claim to its devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub key: ClaimKey,
    pub since: Nanos,
    /// When the last of its devices should be free; known once a claim of best effort is first on all of them.
    pub target: Option<Nanos>,
}

impl Claim {
    pub fn is_urgent(&self) -> bool {
        self.key.rank == 0
    }
}

/// A claim that is the first on each of its gang's devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveClaim {
    pub gang: usize,
    /// Of an urgent one.
    pub deadline: Option<Nanos>,
    /// When the last of its devices should be free.
    pub target: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub id: TenantId,
    /// Who has it, where that was told.
    pub owner: Option<u64>,
    /// What it takes over of its owner's debt and has not been charged yet.
    pub takes_over: Nanos,
    pub terms: Terms,
    /// One for each of its devices. Code numbers them by `h`, tenants by `i` and devices by `d`.
    pub leaseholders: Vec<Leaseholder>,
    pub wants: bool,
    pub place: Place,
    /// When it left the queue by its own will or its cap's.
    pub away_since: Nanos,
    /// When it began to wait, for people to see.
    pub waits_since: Nanos,
    pub bucket: Option<Bucket>,
    pub server: Option<Server>,
    pub lease: Option<Lease>,
    pub claim: Option<Claim>,
    /// A gang's virtual time among gangs.
    pub gang_time: VirtualTime,
    /// Its deadline among the urgent, while it is there.
    pub urgent_by: Nanos,
    /// When the arbiter looks at it next.
    pub timer: Option<Nanos>,
}

impl Tenant {
    pub fn is_gang(&self) -> bool {
        self.leaseholders.len() > 1
    }
}
