//! What slices were charged for their leases, for the supervisor of those that are supervised.

use divvy_arbiter::{Cap, Event, Nanos, Standing, TenantId, View};

use super::Leasing;
use super::state::{DOUBT, State};

/// A slice's leases of one device, so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    /// The slice, by id.
    pub slice_id: String,
    /// The device, by UUID.
    pub device_uuid: String,
    /// The time that it may have used: what it held a lease, also while the tenant before drained. In
    /// nanoseconds.
    pub charged: Nanos,
    /// How long its leases had expired and were not released: by its own word work of them was in flight. In nanoseconds.
    pub outlasted: Nanos,
    /// Its share of the device's time at present, in parts of 10,000.
    pub share: u32,
    /// Use beyond the share is forbidden, or others want the device.
    pub counts: bool,
    /// Its gate is open: nothing is charged.
    pub is_open: bool,
}

impl Leasing {
    /// The charges of every slice that leases, up to now.
    pub fn charges(&self) -> Vec<Charge> {
        self.with(State::charges)
    }
}

/// The time that a tenant may have used without passing the gate. A latency-critical one gets its lease while the
/// launches before still run: it is not charged for that time, and a device runs both in turns. What it is charged beyond its
/// leases is its own word: a tenant that passes the gate would say that it uses all the time. The time of expired leases
/// is its own word too, and not in it.
pub(super) fn entitled(view: &View) -> u128 {
    view.leased.saturating_add(view.waited)
}

impl State {
    pub(super) fn charges(&mut self, now: Nanos) -> Vec<Charge> {
        self.tell(now, &Event::Time);
        let mut all = Vec::new();
        for (number, leaseholder) in &self.leaseholders {
            let wanted_by_others = |device| {
                let others = self.leaseholders.keys().filter(|other| *other != number);
                others
                    .filter_map(|other| self.arbiter.view(TenantId(*other), device))
                    .any(|view| !matches!(view.standing, Standing::Idle))
            };
            let terms = &leaseholder.held_to;
            for account in &leaseholder.accounts {
                let view = self.arbiter.view(TenantId(*number), account.device);
                // What an earlier agent leased may be in flight, as for an expired lease of this one's.
                let doubt = match leaseholder.in_doubt_until {
                    0 => 0,
                    until => now.saturating_sub(until.saturating_sub(DOUBT)),
                };
                let promised = terms.share().map_or(0, |share| u32::from(share.parts()));
                all.push(Charge {
                    slice_id: leaseholder.member.id.clone(),
                    device_uuid: self
                        .devices
                        .get(account.device.0 as usize)
                        .cloned()
                        .unwrap_or_default(),
                    charged: view.map_or(0, |view| u64::try_from(entitled(&view)).unwrap_or(u64::MAX)),
                    outlasted: view
                        .map_or(0, |view| u64::try_from(view.outlasted).unwrap_or(u64::MAX))
                        .saturating_add(doubt),
                    share: promised.max(account.effective),
                    counts: matches!(terms.cap, Cap::Hard) || wanted_by_others(account.device),
                    is_open: leaseholder.lone || view.is_none(),
                });
            }
        }
        all
    }
}
