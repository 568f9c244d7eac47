//! The leases as people see them.

use divvy_arbiter::{Cap, Class, Event, Nanos, Part, Standing, TenantId};
use divvy_model::{Compute, Condition, Weight};

use super::Leasing;
use super::account::Account;
use super::leaseholder::Leaseholder;
use super::state::State;
use crate::api::compute::{ComputeRecord, ComputeStanding};

/// The counts of leases since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Leases that were outlasted so that others were told.
    pub overdue: u64,
    /// Leases that were outlasted so that the device went to others.
    pub expired: u64,
    /// Nanoseconds of device use that were charged to no slice.
    pub uncharged_ns: u64,
}

impl Leasing {
    /// A record for each slice and each of its devices, in the order in which they came.
    pub fn views(&self) -> Vec<ComputeRecord> {
        self.with(State::views)
    }

    /// Notes on how a slice uses its devices, where that is out of the ordinary.
    pub fn conditions(&self, id: &str) -> Vec<Condition> {
        self.with(|state, _| {
            let leaseholder = state
                .number(id)
                .and_then(|number| state.leaseholders.get(&number));
            let Some(leaseholder) = leaseholder else {
                return Vec::new();
            };
            let overstays = leaseholder.overdue.then_some(Condition::Overstays);
            let uncharged = leaseholder.is_uncharged.then_some(Condition::Uncharged);
            overstays.into_iter().chain(uncharged).collect()
        })
    }

    /// The counts of leases so far.
    pub fn totals(&self) -> Totals {
        self.with(|state, _| Totals {
            overdue: state.overdue_total,
            expired: state.expired_total,
            uncharged_ns: state.uncharged_ns,
        })
    }
}

impl State {
    /// A record for each slice and each of its devices, in the order in which they came.
    pub fn views(&mut self, now: Nanos) -> Vec<ComputeRecord> {
        self.tell(now, &Event::Time);
        self.look_at_due(now);
        let leaseholders = self.leaseholders.iter();
        leaseholders
            .flat_map(|(number, leaseholder)| {
                leaseholder
                    .accounts
                    .iter()
                    .map(move |account| (*number, leaseholder, account))
            })
            .map(|(number, leaseholder, account)| view(self, number, leaseholder, account))
            .collect()
    }
}

fn view(state: &State, number: u64, leaseholder: &Leaseholder, account: &Account) -> ComputeRecord {
    let view = state.arbiter.view(TenantId(number), account.device);
    let standing = match (leaseholder.lone, view.map(|view| view.standing)) {
        (true, _) => ComputeStanding::Open,
        (_, None | Some(Standing::Idle)) => ComputeStanding::Idle,
        (_, Some(Standing::Throttled)) => ComputeStanding::Throttled,
        (_, Some(Standing::Waiting)) => ComputeStanding::Waiting,
        (_, Some(Standing::Running)) => ComputeStanding::Running,
        (_, Some(Standing::Stuck)) => ComputeStanding::Stuck,
    };
    let (second, ten) = (account.figures.window(1), account.figures.window(10));
    let counted = |parts: u32| (!leaseholder.lone).then_some(parts);
    let terms = &leaseholder.held_to;
    ComputeRecord {
        slice_id: leaseholder.member.id.clone(),
        slice: leaseholder.member.name.clone(),
        uid: leaseholder.member.uid,
        device_uuid: state
            .devices
            .get(account.device.0 as usize)
            .cloned()
            .unwrap_or_default(),
        standing,
        share: terms.share().map(|share| Compute(share.parts())),
        weight: match terms.part {
            Part::Share(_) => None,
            Part::Weight(weight) => Some(Weight(weight)),
        },
        cap: match terms.cap {
            Cap::Soft => divvy_model::Cap::Soft,
            Cap::Hard => divvy_model::Cap::Hard,
        },
        class: match terms.class {
            Class::BestEffort => divvy_model::Class::BestEffort,
            Class::Latency { .. } => divvy_model::Class::Latency,
        },
        effective: Compute(u16::try_from(account.effective).unwrap_or(u16::MAX)),
        used_1s: counted(second.used),
        used_10s: counted(ten.used),
        busy_1s: account.metered.window(1),
        busy_10s: account.metered.window(10),
        queued_1s: second.queued,
        queued_10s: ten.queued,
        waiting_ns: view.map_or(0, |view| view.waiting),
        debt_ns: view.map_or(0, |view| view.debt),
        charged_ns: view.map_or(0, |view| u64::try_from(view.charged).unwrap_or(u64::MAX)),
        leases: leaseholder.leases,
        kernel_ns: account.kernel_ns,
        in_flight_ns: account.in_flight_ns,
        launched: account.launched,
        overdue_total: leaseholder.overdue_total,
        expired_total: leaseholder.expired_total,
        uncharged_ns: leaseholder.uncharged_ns,
    }
}
