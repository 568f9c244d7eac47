//! The grants of slices in their pages and leases. They are written whenever a slice comes, goes or changes.

use std::sync::Arc;

use divvy_model::{Bytes, Fault};

use crate::decide::compute::cap_of;
use crate::decide::nesting::check_loan;
use crate::leasing::{Leasing, Member};
use crate::life::records::store;
use crate::modes::untidy::Untidy;
use crate::modes::{on_demand, prerequisites};
use crate::start::rundir::RunDir;
use crate::state::State;

/// The number of tries to undo settings of a device before the agent gives up.
const TRIES: u32 = 10;

/// The grants of all slices.
pub(crate) struct Grants {
    pub run: RunDir,
    pub leasing: Arc<Leasing>,
    /// This is raised when a slice went, because the settings that it needed may have to be undone.
    pub untidy: Arc<Untidy>,
}

impl Grants {
    /// Writes the present amounts into every slice's grants. To be called after a slice came, went or changed.
    pub fn changed(&self, state: &mut State) {
        if prerequisites::is_in_use(self.run.path()) || on_demand::is_in_use(self.run.path()) {
            self.untidy.ask(TRIES);
        }
        let terms = state.family().compute_terms();
        for slice in state.slices.values_mut() {
            slice.terms = terms.get(&slice.record.id).copied();
            if let Some(terms) = &slice.terms {
                slice.record.terms.compute.cap = cap_of(terms);
            }
            slice.write_grants();
        }
        self.lease_out(state);
    }

    /// Has the slices that have pages lease their devices, by their present terms. To be called whenever a slice got
    /// pages, or its terms changed.
    pub fn lease_out(&self, state: &State) {
        let members = state.slices.values().filter_map(|slice| {
            let record = &slice.record;
            Some(Member {
                id: record.id.clone(),
                name: record.name.clone(),
                uid: record.uid,
                account: record
                    .account_uid
                    .unwrap_or_else(|| state.accounts.one(record.uid)),
                devices: record
                    .shares
                    .iter()
                    .map(|share| share.device_uuid.clone())
                    .collect(),
                pages: slice.pages.clone()?,
                terms: slice.terms?,
            })
        });
        self.leasing.sync(members.collect());
    }

    /// Sums up what `parent` lends of each device to the slices inside it, and takes that off its pages.
    ///
    /// # Errors
    /// [`divvy_model::Code::SliceFull`] when its programs have meanwhile taken what was to be lent. The page shows the
    /// loan all the same: the caller takes it back.
    pub fn relend(&self, state: &mut State, parent: &str) -> Result<(), Fault> {
        let lent_of = |device_uuid: &str| {
            let inside = state
                .slices
                .values()
                .filter(|slice| slice.record.parent_id.as_deref() == Some(parent));
            let holds = inside.filter_map(|slice| slice.hold_on(device_uuid));
            Bytes(holds.fold(0_u64, |sum, hold| sum.saturating_add(hold.limit.0)))
        };
        let Some(before) = state.slices.get(parent).map(|slice| slice.record.shares.clone()) else {
            return Ok(());
        };
        let mut shares = before.clone();
        for share in shares.iter_mut() {
            share.memory_lent_bytes = lent_of(&share.device_uuid);
        }
        let Some(slice) = state.slices.get_mut(parent).filter(|_| shares != before) else {
            return Ok(());
        };
        slice.record.shares = shares.clone();
        // The pages first, then a look: what the parent's programs reserve from now on is measured by the new limits.
        slice.write_grants();
        let record = slice.stored_form();
        store(&self.run, &record)?;
        for ((share, before), usage) in shares.iter().zip(before.iter()).zip(slice.usages()) {
            check_loan(&record.name, before, share, usage.used)?;
        }
        Ok(())
    }

    /// A slice inside `parent` has ended.
    pub fn give_back(&self, state: &mut State, parent: Option<String>) {
        if let Some(parent) = parent
            && let Err(fault) = self.relend(state, &parent)
        {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }
}
