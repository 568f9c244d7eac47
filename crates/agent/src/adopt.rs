//! Taking back the slices of a predecessor that died: its records are on disk, the pages are with the keepers.

use divvy_model::SliceRecord;

use crate::daemon::Daemon;
use crate::pages::{self, RecallFailure};
use crate::slice::{Slice, attach_socket, discard, store, stored};

impl Daemon {
    /// Takes back every slice whose keeper lives, and clears away the rest. A keeper that does not answer costs its
    /// time limit, so all are asked at once.
    pub(crate) fn adopt(&self) {
        let records = stored(&self.run);
        let outcomes = std::thread::scope(|scope| {
            let asked: Vec<_> = records
                .iter()
                .map(|record| {
                    let socket = attach_socket(&self.run, &record.id);
                    scope.spawn(move || pages::recall(&socket, record.memory_limit_bytes))
                })
                .collect();
            asked
                .into_iter()
                .map(|asked| asked.join().unwrap_or(Err(RecallFailure::Dead)))
                .collect::<Vec<_>>()
        });
        for (record, outcome) in records.into_iter().zip(outcomes) {
            self.adopt_one(record, outcome);
        }
    }

    fn adopt_one(
        &self,
        record: SliceRecord,
        outcome: Result<(divvy_ledger::attach::Pages, u32), RecallFailure>,
    ) {
        let mut book = self.book();
        let keeper = record.keeper_pid;
        let mut slice = match outcome {
            Ok((pages, keeper)) => {
                let mut slice = Slice::new(record, Some(keeper));
                slice.pages = Some(pages);
                tracing::info!(slice = slice.record.name, keeper, "slice taken back");
                slice
            }
            Err(RecallFailure::Waiting) => Slice::new(record, keeper),
            Err(RecallFailure::Unusable(fault)) => {
                tracing::error!(slice = record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                let mut slice = Slice::new(record, keeper);
                slice.damage = Some(fault);
                slice
            }
            Err(RecallFailure::Dead) => {
                tracing::info!(slice = record.name, "slice ended while no agent ran");
                discard(&self.run, &record.id);
                return;
            }
        };
        let uuid = slice.record.device_uuid.clone();
        if let Some(spec) = slice.record.emulated_spec.clone() {
            match divvy_host::emulated_devices(&spec, self.run.path()) {
                Ok(devices) => book.inventory.add(devices),
                Err(fault) => tracing::warn!("{fault}"),
            }
        }
        if let Err(fault) = self.take_device(&mut book, &uuid) {
            // Its memory is promised by somebody else now: say so, and look after it all the same.
            tracing::error!(slice = slice.record.name, "{fault}");
            slice.record.warnings.push(fault.message);
        }
        if let Err(fault) = store(&self.run, &slice.record) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
        book.slices.insert(slice.record.id.clone(), slice);
    }
}
