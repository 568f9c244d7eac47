//! What slices need of their devices beside a share. What no slice needs any more is put back.

use std::collections::BTreeSet;

use divvy_model::{Mode, SliceRecord};

/// The settings of devices that the present slices need.
#[derive(Debug, Default)]
pub struct InUse {
    /// Users of MPS, by device.
    mps: BTreeSet<(u32, String)>,
    /// Slices, by id.
    slices: BTreeSet<String>,
    /// Devices whose turns have a length of their own.
    turns: BTreeSet<String>,
}

impl InUse {
    /// Collects it from these slices.
    #[must_use]
    pub fn by<'a>(records: impl IntoIterator<Item = &'a SliceRecord>) -> Self {
        let mut in_use = Self::default();
        for record in records {
            in_use.slices.insert(record.id.clone());
            for share in record.shares.iter() {
                match (record.terms.sharing.mode, record.terms.sharing.time_slice) {
                    (Mode::Mps, _) => {
                        in_use.mps.insert((record.uid, share.device_uuid.clone()));
                    }
                    (Mode::Timeslice, Some(_)) => {
                        in_use.turns.insert(share.device_uuid.clone());
                    }
                    _ => {}
                }
            }
        }
        in_use
    }

    /// Whether a slice of this user needs the MPS daemon of a device.
    #[must_use]
    pub fn needs_daemon(&self, uid: u32, device_uuid: &str) -> bool {
        self.mps.contains(&(uid, device_uuid.to_owned()))
    }

    /// Whether the slice with this id still exists, and its static partition with it.
    #[must_use]
    pub fn needs_partition(&self, slice: &str) -> bool {
        self.slices.contains(slice)
    }

    /// Whether a slice needs the length of turns that was set on a device.
    #[must_use]
    pub fn needs_turns(&self, device_uuid: &str) -> bool {
        self.turns.contains(device_uuid)
    }
}
