//! Slices that are made for records, and ended with them: what both kinds of plugin do.
//!
//! A record is written before the first slice is made, and removed after the last has ended. So a slice whose answer was lost
//! is found by its name.

#[cfg(doc)]
use divvy_model::Code;
use divvy_model::{DeviceRecord, Fault, MemoryAmount, SliceRecord, SliceRequest};

use crate::claim::refused;
use crate::points::reach;
use crate::state::{Prepared, Record, State};

/// The first word of each slice's command, for lists: `kubernetes default/train UID`.
pub const WORD: &str = "kubernetes";

/// The kind of slices' CDI devices: `divvy.dev/slice=NAME`.
pub const SLICE_KIND: &str = "divvy.dev/slice";

/// What is asked of the agent and of the container runtime's folder, so that tests have one of their own. Calls block.
///
/// # Errors
/// Every method: what the agent refuses with, [`Code::AgentUnreachable`] where there is none.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Host: Send + Sync {
    /// The user whose slices are this process's, by user id.
    fn uid(&self) -> u32;
    /// The devices that the agent has.
    fn devices(&self) -> Result<Vec<DeviceRecord>, Fault>;
    /// The slices of all users.
    fn slices(&self) -> Result<Vec<SliceRecord>, Fault>;
    /// Makes a slice. Lists show `words`, which say what it is for.
    fn make(&self, ask: &SliceRequest, words: &[String]) -> Result<SliceRecord, Fault>;
    /// Writes the slice's CDI device, if it is not there; what container runtimes call it.
    fn describe(&self, slice: &SliceRecord) -> Result<String, Fault>;
    /// Ends a slice, and removes its CDI device. One that is gone already is no error.
    fn end(&self, slice: &SliceRecord) -> Result<(), Fault>;
}

/// The records of one kind of plugin, and the slices that were made for them.
pub(crate) struct Kept {
    pub host: Box<dyn Host>,
    pub state: State,
}

impl Kept {
    /// The slices of this process's user.
    pub fn own_slices(&self) -> Result<Vec<SliceRecord>, Fault> {
        let uid = self.host.uid();
        let mut slices = self.host.slices()?;
        slices.retain(|slice| slice.uid == uid);
        Ok(slices)
    }

    /// Makes what is not there of a record's slices.
    pub fn make(&self, record: &mut Record, words: &[String]) -> Result<(), Fault> {
        if !record.prepared {
            self.state.write(record)?;
            reach("record written");
        }
        let before = record.clone();
        let slices = self.own_slices()?;
        for request in &mut record.requests {
            let found = slices.iter().find(|slice| slice.name == request.slice);
            let slice = match found {
                Some(slice) if is_its(slice, request) => slice.clone(),
                // Made by hand under this name: names hold a digest of the claim's UID.
                Some(_) => return Err(refused(&format!("there is another slice `{}`", request.slice))),
                None => self.host.make(&request.ask, words)?,
            };
            reach("slice made");
            request.slice_id.clone_from(&slice.id);
            request.cdi = self.host.describe(&slice)?;
            reach("slice described");
        }
        record.prepared = true;
        if *record != before {
            self.state.write(record)?;
        }
        reach("claim prepared");
        Ok(())
    }

    /// Ends what was made for a record. The record goes last: after a crash in between it is done again.
    pub fn take_back(&self, record: &Record) -> Result<(), Fault> {
        if record.prepared {
            // From here on it is half done, whatever happens: the next call or driver goes on.
            let half = Record {
                prepared: false,
                ..record.clone()
            };
            self.state.write(&half)?;
        }
        let slices = self.own_slices()?;
        for request in &record.requests {
            if let Some(slice) = slices.iter().find(|slice| slice.name == request.slice) {
                self.host.end(slice)?;
                reach("slice ended");
            }
        }
        self.state.remove(&record.uid)?;
        reach("record removed");
        Ok(())
    }

    /// Ends what was made under a UID whose record cannot be read. The slices say which claim they are of.
    pub fn take_back_damaged(&self, uid: &str) -> Result<(), Fault> {
        for slice in self.own_slices()? {
            if of_uid(&slice) == Some(uid) {
                self.host.end(&slice)?;
            }
        }
        self.state.remove(uid)
    }
}

/// The UID of the claim or allocation that a slice was made for.
#[must_use]
pub fn of_uid(slice: &SliceRecord) -> Option<&str> {
    match slice.command.as_slice() {
        [word, _, uid, ..] if word == WORD => Some(uid),
        _ => None,
    }
}

/// Whether a slice of the right name is the request's. One that was made for it is, whatever size it has by now.
fn is_its(slice: &SliceRecord, request: &Prepared) -> bool {
    slice.id == request.slice_id || is_as_asked(slice, request)
}

/// Whether a slice of the right name is what was asked for.
fn is_as_asked(slice: &SliceRecord, request: &Prepared) -> bool {
    let memory = match request.ask.memory {
        Some(MemoryAmount::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let devices: Vec<String> = request.ask.selectors().map(ToString::to_string).collect();
    slice.shares.count() == devices.len()
        && slice.shares.iter().all(|share| {
            devices.contains(&share.device_uuid)
                && memory.is_none_or(|memory| share.memory_limit_bytes == memory)
        })
}
