//! What looks found of slices on devices, and what of that outlives the agent.

use std::collections::HashMap;

use divvy_model::{Bytes, DeviceShare, SliceRecord};
use serde::{Deserialize, Serialize};

use crate::decide::supervise::memory::Memory;
use crate::decide::supervise::time::Time;
use crate::life::records;
use crate::start::rundir::RunDir;

/// A device that gives no figure for so long has frozen slices go on, in nanoseconds.
pub(super) const SILENT: u64 = 5_000_000_000;
/// What earlier looks found of a slice on a device.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub memory: Memory,
    pub time: Time,
    /// It is frozen for its memory, or for its time.
    pub is_frozen: [bool; 2],
    /// It was reported that it has too much memory, or time.
    pub is_told: [bool; 2],
    /// It was reported that it is not seen.
    pub is_blind: bool,
    pub limit: Bytes,
    /// An earlier agent made the slice, and no look has found both its figure and its ledger's yet.
    pub is_adopted: bool,
    /// The largest limit that it had, as far as looks of this agent or an earlier one saw it.
    pub largest: Option<Bytes>,
    /// Its share of the device at the last look, in parts of 10,000.
    pub share: u32,
    /// When the last look with a figure was, in nanoseconds.
    pub seen_at: u64,
}

/// A limit, as it is written down.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Largest {
    slice: String,
    device: String,
    bytes: Bytes,
}

/// The accounts, by slice and device.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub all: HashMap<(String, String), Account>,
    /// There was a look before.
    has_looked: bool,
    /// What was written down last.
    stored: Vec<Largest>,
}

/// What a slice's programs may hold.
fn limit(share: &DeviceShare) -> Bytes {
    Bytes(share.granted().0.saturating_add(share.spill_limit_bytes.0))
}

impl Accounts {
    /// Keeps an account for each of these slices on each of its devices. `at` is the time of this look, in nanoseconds.
    pub fn keep(&mut self, supervised: &[&SliceRecord], at: u64, run: &RunDir) {
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let present: HashMap<&str, &SliceRecord> = supervised
            .iter()
            .map(|record| (record.id.as_str(), *record))
            .collect();
        let is_there = |(slice, device): &(String, String)| -> bool {
            let record = present.get(slice.as_str());
            record.is_some_and(|record| record.shares.on(device).is_some())
        };
        self.all.retain(|of, _| is_there(of));
        let before: Vec<Largest> = match is_first {
            true => records::stored_limits(run),
            false => Vec::new(),
        };
        for record in supervised {
            for share in record.shares.iter() {
                let of = (record.id.clone(), share.device_uuid.clone());
                let account = self.all.entry(of).or_insert_with(|| {
                    let known = before
                        .iter()
                        .find(|one| (&one.slice, &one.device) == (&record.id, &share.device_uuid));
                    match is_first {
                        true => Account::adopted(known.map(|one| one.bytes), at),
                        false => Account::begun(share, at),
                    }
                });
                account.note_limit(share);
            }
        }
        self.store(run, is_first);
    }

    /// Opens the accounts of a slice that began since the last look, and notes its limits, because a resize comes next: what it may
    /// keep is what it had before.
    pub fn note_limits(&mut self, record: &SliceRecord, at: u64, run: &RunDir) {
        for share in record.shares.iter() {
            let of = (record.id.clone(), share.device_uuid.clone());
            let account = self.all.entry(of);
            account
                .or_insert_with(|| Account::begun(share, at))
                .note_limit(share);
        }
        self.store(run, false);
    }

    /// Writes the largest limits down where they changed, or `always`.
    fn store(&mut self, run: &RunDir, always: bool) {
        let limits = self.all.iter().filter_map(|((slice, device), account)| {
            Some(Largest {
                slice: slice.clone(),
                device: device.clone(),
                bytes: account.largest?,
            })
        });
        let mut limits: Vec<Largest> = limits.collect();
        limits.sort_unstable();
        if limits == self.stored && !always {
            return;
        }
        if let Err(fault) = records::store_limits(run, &limits) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
        // What cannot be written is not tried at each look.
        self.stored = limits;
    }

    /// Has those go on whose device gives no figure any more, as of `at`. Returns them.
    pub fn let_silent_go(&mut self, at: u64) -> Vec<(String, String)> {
        let mut gone_silent = Vec::new();
        for (of, account) in &mut self.all {
            if at.saturating_sub(account.seen_at) <= SILENT {
                continue;
            }
            if account.is_frozen.contains(&true) || account.time.pays() {
                gone_silent.push(of.clone());
            }
            account.is_frozen = [false; 2];
            account.is_told = [false; 2];
            account.memory.miss();
            account.time = Time::default();
        }
        gone_silent
    }
}

impl Account {
    /// Of a slice that an earlier agent made, which wrote down so much as its largest limit.
    fn adopted(largest: Option<Bytes>, at: u64) -> Self {
        Self {
            is_adopted: true,
            time: Time::of_adopted(at),
            largest,
            seen_at: at,
            ..Self::default()
        }
    }

    /// Of a slice of this agent's.
    fn begun(share: &DeviceShare, at: u64) -> Self {
        let mut account = Self {
            seen_at: at,
            ..Self::default()
        };
        // Where it is resized to less before the first look, it may keep what it has of this.
        account.memory.allow_what_is_held(limit(share));
        account
    }

    /// Notes its limit, if that is the largest so far.
    fn note_limit(&mut self, share: &DeviceShare) {
        let limit = limit(share);
        // What an adopted slice had before is not known where no earlier agent wrote it down: the first figure tells.
        let is_larger = match self.largest {
            None => !self.is_adopted,
            Some(largest) => limit > largest,
        };
        if is_larger {
            self.largest = Some(limit);
        }
    }
}
