//! The running agent's state: devices, slices, and the runs that wait.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use divvy_host::Inventory;
use divvy_model::{Code, DeviceRecord, Fault, SliceRecord};

use crate::accounts::Accounts;
use crate::admission::owner::Owner;
use crate::admission::waiters::Queue;
use crate::decide::family::Family;
use crate::decide::placement::device_of;
use crate::decide::rules::{Tenant, Tenants};
use crate::life::slice::Slice;
use crate::system::peer::Peer;

/// The part of the agent that changes while it runs.
#[derive(Default)]
pub(crate) struct State {
    pub inventory: Inventory,
    /// The devices that this agent has claimed, by UUID.
    pub owned: HashSet<String>,
    /// The devices, of these, that another user's process claims as well.
    pub contested: HashMap<String, Owner>,
    /// The slices, by id.
    pub slices: BTreeMap<String, Slice>,
    /// The runs that wait for admission.
    pub queue: Queue,
    pub bypass_total: u64,
    /// When the devices' memory was last audited.
    pub audited_at: Option<Instant>,
    /// The number of consecutive rounds that saw no container of a slice that goes with its containers.
    pub missed: HashMap<String, u32>,
    /// When a slice last ended.
    pub ended_at: Option<Instant>,
    /// The processes on each device and in no ledger at the last audit, by the device's UUID.
    unmanaged: HashMap<String, HashSet<u32>>,
    /// Which user each user counts for.
    pub accounts: Arc<Accounts>,
}

/// The state behind its lock, shared by the agent's parts.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// Starts with this state.
    pub fn of(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// The state. A panic in one request must not end the agent for all: the state is consistent between statements.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The state of an agent that has just started.
    pub fn with(inventory: Inventory, accounts: Arc<Accounts>) -> Self {
        Self {
            inventory,
            accounts,
            ..Self::default()
        }
    }

    /// Notes the processes on a device and in no ledger. Returns whether one of them was not there at the audit before.
    pub fn note_unmanaged(&mut self, uuid: &str, pids: &[u32]) -> bool {
        let now: HashSet<u32> = pids.iter().copied().collect();
        let before = self.unmanaged.insert(uuid.to_owned(), now);
        let before = before.unwrap_or_default();
        pids.iter().any(|pid| !before.contains(pid))
    }

    /// The device of this UUID.
    ///
    /// # Errors
    /// [`Code::UnknownDevice`]: the device is gone since a slice was made of it.
    pub fn device(&self, uuid: &str) -> Result<DeviceRecord, Fault> {
        device_of(&self.inventory, uuid)
    }

    /// The slices' records, in the form that decisions read.
    pub fn family(&self) -> Family<'_> {
        Family::of(self.slices.values().map(|slice| &slice.record))
    }

    /// The holds of each outermost slice on its devices.
    pub fn tenants(&self) -> Tenants {
        let family = self.family();
        let outermost = self
            .slices
            .values()
            .filter(|slice| family.is_outermost(&slice.record));
        let tenant = |slice: &Slice| Tenant {
            id: slice.record.id.clone(),
            accounts: self.accounts_of(&slice.record),
            holds: slice.holds(),
        };
        Tenants(outermost.map(tenant).collect())
    }

    /// The accounts that a slice counts for: its own, and what its user counts for by now.
    fn accounts_of(&self, record: &SliceRecord) -> Vec<u32> {
        let mut accounts = self.accounts.of(record.uid);
        if !accounts.contains(&record.account()) {
            accounts.push(record.account());
        }
        accounts
    }

    /// The slice of this name, id or unique prefix of an id. The caller's own slice of the name comes first, then
    /// another user's if only one has it.
    pub fn find(&mut self, which: &str, peer: Peer) -> Result<&mut Slice, Fault> {
        let id = self.id_of(which, peer)?;
        self.slices.get_mut(&id).ok_or_else(|| unknown(which))
    }

    fn id_of(&self, which: &str, peer: Peer) -> Result<String, Fault> {
        // A whole id always means that slice, whatever name another user gives to a slice.
        if self.slices.contains_key(which) {
            return Ok(which.to_owned());
        }
        let named: Vec<&SliceRecord> = self
            .slices
            .values()
            .map(|slice| &slice.record)
            .filter(|record| record.name == which)
            .collect();
        let own = named.iter().find(|record| record.uid == peer.uid);
        match (own, named.as_slice()) {
            (Some(record), _) | (None, [record]) => Ok(record.id.clone()),
            (None, []) => {
                let mut fits = self
                    .slices
                    .keys()
                    .filter(|id| !which.is_empty() && id.starts_with(which));
                match (fits.next(), fits.next()) {
                    (Some(id), None) => Ok(id.clone()),
                    _ => Err(unknown(which)),
                }
            }
            (None, several) => {
                let ids: Vec<&str> = several.iter().map(|record| record.id.as_str()).collect();
                Err(Fault::new(
                    Code::UnknownSlice,
                    format!("several users have a slice `{which}`, and you have none"),
                )
                .hint(format!("name one by its id: {}", ids.join(", "))))
            }
        }
    }
}

fn unknown(which: &str) -> Fault {
    Fault::new(Code::UnknownSlice, format!("there is no slice `{which}`")).hint("`divvy ps` lists them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmanaged_process_is_news_once_on_each_device() {
        let mut state = State::default();
        assert!(!state.note_unmanaged("GPU-0", &[]));
        assert!(state.note_unmanaged("GPU-0", &[7]));
        assert!(!state.note_unmanaged("GPU-0", &[7]));
        assert!(state.note_unmanaged("GPU-1", &[7]));
        assert!(state.note_unmanaged("GPU-0", &[7, 8]));
        assert!(!state.note_unmanaged("GPU-0", &[8]));
        assert!(state.note_unmanaged("GPU-0", &[7]), "gone, and there again");
    }
}
