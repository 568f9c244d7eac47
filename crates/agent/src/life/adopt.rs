//! Adoption: taking back the slices of a dead predecessor. Its records are on disk, and the page servers have the
//! pages.
//!
//! A page server that does not answer now is asked again later. Where the page server is dead too, the pages are lost,
//! but not the memory that the slice's processes hold. So the slice stays, with its whole limit counted, until those
//! processes are gone.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};

use divvy_model::{Code, Fault, SliceRecord, SliceState};

use crate::admission::claims::Claims;
use crate::api::events::EventKind;
use crate::journal::Journal;
use crate::life::grants::Grants;
use crate::life::pages::{self, RecallFailure};
use crate::life::records::{ATTACH, CONTROL, control_socket, discard, store, stored};
use crate::life::slice::Slice;
use crate::start::rundir::RunDir;
use crate::state::Shared;
use crate::system::procs::{Life, life};

/// The slices of a predecessor, and pages that are asked for again.
pub(crate) struct Adoption {
    pub run: RunDir,
    pub state: Shared,
    pub journal: Arc<Journal>,
    pub grants: Arc<Grants>,
    pub claims: Arc<Claims>,
    /// Held while missing pages are asked for.
    pub recalling: Mutex<()>,
}

impl Adoption {
    /// Takes back every slice whose page server lives, and clears away those that no process uses.
    pub fn adopt(&self) {
        let records = stored(&self.run);
        let outcomes = self.recall_all(&records);
        for (record, outcome) in records.into_iter().zip(outcomes) {
            self.adopt_one(record, outcome);
        }
        // The memory of a slice inside another may have been freed meanwhile, and its parent's too.
        let mut state = self.state.lock();
        let ids: Vec<String> = state.slices.keys().cloned().collect();
        for id in ids {
            self.grants.give_back(&mut state, Some(id));
        }
        self.grants.changed(&mut state);
    }

    /// Whether pages are to be asked for again.
    pub fn misses_pages(&self) -> bool {
        self.state
            .lock()
            .slices
            .values()
            .any(|slice| slice.missing.is_some())
    }

    /// Asks again for the pages that could not be recalled. Blocks for as long as a page server may take to answer.
    pub fn recall_missing(&self) {
        // One slice at a time: each recall makes a new grant, and the page server's and the agent's must be the same
        // one.
        let _alone = self.recalling.lock().unwrap_or_else(PoisonError::into_inner);
        let records: Vec<SliceRecord> = self
            .state
            .lock()
            .slices
            .values()
            .filter(|slice| slice.missing.is_some())
            .map(|slice| slice.record.clone())
            .collect();
        let outcomes = self.recall_all(&records);
        let mut state = self.state.lock();
        for (record, outcome) in records.into_iter().zip(outcomes) {
            let Some(slice) = state.slices.get_mut(&record.id) else {
                continue;
            };
            match outcome {
                Ok(pages) => slice.take_back(pages),
                Err(RecallFailure::Unusable(fault)) => {
                    tracing::error!(slice = record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                    slice.missing = None;
                    slice.damage = Some(fault);
                }
                Err(RecallFailure::Dead) if !slice.is_kept() => {
                    slice.set_page_server(None);
                    slice.missing = Some(lost());
                }
                Err(RecallFailure::Dead | RecallFailure::Waiting | RecallFailure::Late(_)) => {}
            }
        }
        self.grants.lease_out(&state);
    }

    /// A page server that does not answer costs its time limit, so all are asked at once.
    fn recall_all(&self, records: &[SliceRecord]) -> Vec<Recalled> {
        std::thread::scope(|scope| {
            let asked: Vec<_> = records
                .iter()
                .map(|record| scope.spawn(move || self.recall_one(record)))
                .collect();
            asked
                .into_iter()
                .map(|asked| asked.join().unwrap_or(Err(RecallFailure::Dead)))
                .collect()
        })
    }

    fn recall_one(&self, record: &SliceRecord) -> Recalled {
        if is_of_older_layout(&self.run, record) {
            return Err(RecallFailure::Unusable(
                Fault::new(
                    Code::PageVersion,
                    "an earlier version of Divvy made this slice, in a folder of its user's",
                )
                .hint("its programs keep their limit; end it when they have ended, and make it again"),
            ));
        }
        pages::recall(&control_socket(&self.run, &record.id), record)
    }

    fn adopt_one(&self, record: SliceRecord, outcome: Recalled) {
        let mut state = self.state.lock();
        if let Some(spec) = &record.emulated_spec {
            match divvy_host::emulated_devices(spec, self.run.path()) {
                Ok(devices) => state.inventory.add(devices),
                Err(fault) => tracing::warn!("{fault}"),
            }
        }
        let here = state.inventory.devices.clone();
        let page_server = record.page_server_pid;
        let mut slice = match outcome {
            Ok(pages) => {
                let mut slice = Slice::new(record, page_server, &here);
                slice.take_back(pages);
                slice
            }
            Err(RecallFailure::Waiting) if !record.lasting => Slice::new(record, page_server, &here),
            // The slice was admitted a moment ago: its `divvy run` does not listen yet.
            Err(RecallFailure::Dead)
                if record.state == SliceState::Starting
                    && page_server.is_some_and(|page_server| life(page_server) != Life::Gone) =>
            {
                Slice::new(record, page_server, &here)
            }
            Err(RecallFailure::Late(fault)) => {
                tracing::warn!(slice = record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                let mut slice = Slice::new(record, page_server, &here);
                slice.missing = Some(fault);
                slice
            }
            Err(RecallFailure::Unusable(fault)) => {
                tracing::error!(slice = record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                let mut slice = Slice::new(record, page_server, &here);
                slice.damage = Some(fault);
                slice
            }
            // A lasting slice's page server waits for pages if its agent died between the start and the handover of the
            // earlier page server's pages. These pages are lost.
            Err(RecallFailure::Dead | RecallFailure::Waiting) => {
                let mut slice = Slice::new(record, None, &here);
                slice.missing = Some(lost());
                let processes = slice.processes();
                if slice.may_be_in_use() {
                    slice.record.state = SliceState::Orphaned;
                    tracing::warn!(
                        slice = slice.record.name,
                        ?processes,
                        "the slice's pages are lost, its processes live"
                    );
                } else if slice.record.lasting {
                    // No process uses what is lost: the next tick makes new pages and a new page server.
                    slice.missing = None;
                } else {
                    tracing::info!(slice = slice.record.name, "slice ended while no agent ran");
                    discard(&self.run, &slice.record.id);
                    return;
                }
                slice
            }
        };
        for share in slice.record.shares.iter() {
            let taken = match here.iter().find(|device| device.uuid == share.device_uuid) {
                Some(device) => self.claims.take(&mut state, device),
                None => Err(Fault::new(
                    Code::UnknownDevice,
                    format!("the slice's device {} is not here", share.device_uuid),
                )),
            };
            if let Err(fault) = taken {
                // The slice is looked after all the same, and the fault is logged.
                tracing::error!(slice = slice.record.name, "{fault}");
                slice.record.warnings.push(fault.message);
            }
        }
        let record = slice.stored_form();
        if let Err(fault) = store(&self.run, &record) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
        let message = match slice.pages {
            Some(_) => "taken over from an agent that ended",
            None => "known from an agent that ended",
        };
        // Those were for the agent before.
        drop(slice.new_refusals());
        self.journal.tell(EventKind::SliceAdopted, &slice.record, message);
        state.slices.insert(slice.record.id.clone(), slice);
    }
}

type Recalled = Result<Vec<divvy_ledger::attach::Pages>, RecallFailure>;

/// Whether the slice's folder comes from a version that gave it to the slice's user. Nothing in such a folder is
/// touched, or even connected to.
fn is_of_older_layout(run: &RunDir, record: &SliceRecord) -> bool {
    match run.slices_folder().and_then(|slices| slices.below(&record.id)) {
        Ok(folder) => !folder.has(CONTROL) && folder.has(ATTACH),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

fn lost() -> Fault {
    Fault::new(
        Code::SliceGone,
        "the slice's pages are lost, and what it holds is not known",
    )
    .cause("its page server and the agent died while its processes live; its limit is kept until they end")
}
