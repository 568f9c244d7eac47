//! Taking back the slices of a predecessor that died: its records are on disk, the pages are with the keepers.

use divvy_model::{Code, Fault, SliceRecord};

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
        if let Some(spec) = &record.emulated_spec {
            match divvy_host::emulated_devices(spec, self.run.path()) {
                Ok(devices) => book.inventory.add(devices),
                Err(fault) => tracing::warn!("{fault}"),
            }
        }
        let uuid = &record.device_uuid;
        let device = book
            .inventory
            .devices
            .iter()
            .find(|device| device.uuid == *uuid)
            .cloned();
        let memory = device
            .as_ref()
            .map_or(record.memory_limit_bytes, |device| device.memory_total_bytes);
        let keeper = record.keeper_pid;
        let mut slice = match outcome {
            Ok((pages, keeper)) => {
                let mut slice = Slice::new(record, Some(keeper), memory);
                slice.pages = Some(pages);
                tracing::info!(slice = slice.record.name, keeper, "slice taken back");
                slice
            }
            Err(RecallFailure::Waiting) => Slice::new(record, keeper, memory),
            Err(RecallFailure::Unusable(fault)) => {
                tracing::error!(slice = record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                let mut slice = Slice::new(record, keeper, memory);
                slice.damage = Some(fault);
                slice
            }
            Err(RecallFailure::Dead) => {
                tracing::info!(slice = record.name, "slice ended while no agent ran");
                discard(&self.run, &record.id);
                return;
            }
        };
        let taken = match device {
            Some(device) => self.take_device(&mut book, &device),
            None => Err(Fault::new(
                Code::UnknownDevice,
                format!("the slice's device {} is not here", slice.record.device_uuid),
            )),
        };
        if let Err(fault) = taken {
            // Look after it all the same, and say so.
            tracing::error!(slice = slice.record.name, "{fault}");
            slice.record.warnings.push(fault.message);
        }
        if let Err(fault) = store(&self.run, &slice.record) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
        book.slices.insert(slice.record.id.clone(), slice);
    }
}
