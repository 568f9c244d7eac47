//! What looks found of slices on devices, and what of that outlives a slice.
//!
//! A user's slices that follow each other have one second of grace and one share together: what is left of an account goes
//! to the next slices of that user on the device, for ten seconds. It goes to no other user's.

use std::collections::HashMap;

use divvy_model::{Bytes, DeviceShare, SliceRecord};
use serde::{Deserialize, Serialize};

use crate::decide::supervise::memory::Memory;
use crate::decide::supervise::time::Time;
use crate::life::records;
use crate::start::rundir::RunDir;

/// For how long what is left of a slice counts for the next one, in nanoseconds.
const LEFT: u64 = 10_000_000_000;
/// A device that gives no figure for so long has frozen slices go on, in nanoseconds.
pub(super) const SILENT: u64 = 5_000_000_000;
/// No more is remembered of slices that have ended.
const MOST_LEFT: usize = 4096;

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
    /// It has the debt of an earlier slice, and that was not told yet.
    pub is_debt_new: bool,
    uid: u32,
    /// A container's slice of root's: whose program it is, is not known.
    is_of_any: bool,
    /// When the first look at it was, and the last one with a figure, in nanoseconds.
    since: u64,
    pub seen_at: u64,
}

/// What an earlier slice of a user left on a device.
#[derive(Debug)]
struct Left {
    memory: Memory,
    time: Time,
    share: u32,
    at: u64,
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
    /// By user and device.
    left: HashMap<(u32, String), Left>,
    /// When the last look was, in nanoseconds; none before the first one.
    looked_at: Option<u64>,
}

impl Accounts {
    /// Keeps an account for each of these slices on each of its devices. `at` is the time of this look, in nanoseconds.
    pub fn keep(&mut self, supervised: &[&SliceRecord], at: u64, run: &RunDir) {
        let is_first = self.looked_at.is_none();
        let looked_at = self.looked_at.replace(at).unwrap_or(at);
        let present: HashMap<&str, &SliceRecord> = supervised
            .iter()
            .map(|record| (record.id.as_str(), *record))
            .collect();
        let is_there = |(slice, device): &(String, String)| -> bool {
            let record = present.get(slice.as_str());
            record.is_some_and(|record| record.shares.on(device).is_some())
        };
        let ended: Vec<((String, String), Account)> = self.all.extract_if(|of, _| !is_there(of)).collect();
        let mut is_changed = !ended.is_empty();
        for ((_, device), account) in ended {
            self.leave(device, account, at, looked_at);
        }
        self.left.retain(|_, left| at.saturating_sub(left.at) <= LEFT);
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
                    let mut account = Account {
                        is_adopted: is_first,
                        largest: known.map(|one| one.bytes),
                        uid: record.uid,
                        is_of_any: record.uid == 0 && record.lasting,
                        since: at,
                        seen_at: at,
                        ..Account::default()
                    };
                    let left = self.left.get(&(record.uid, share.device_uuid.clone()));
                    if let Some(left) = left.filter(|_| !account.is_of_any) {
                        account.inherit(&left.memory, &left.time, left.share, at, looked_at);
                    }
                    account
                });
                is_changed |= account.note_limit(share);
            }
        }
        if is_changed || is_first {
            self.store(run);
        }
    }

    /// What is left of an account goes to what its user has begun since, and to what the user begins in the next seconds.
    fn leave(&mut self, device: String, account: Account, at: u64, looked_at: u64) {
        if account.is_of_any {
            return;
        }
        for ((_, other), younger) in &mut self.all {
            let is_next = younger.uid == account.uid && !younger.is_of_any && *other == device;
            if is_next && younger.since > account.since && at.saturating_sub(younger.since) <= LEFT {
                younger.inherit(&account.memory, &account.time, account.share, at, looked_at);
            }
        }
        let of = (account.uid, device);
        if self.left.len() >= MOST_LEFT && !self.left.contains_key(&of) {
            return;
        }
        let mut left = Left {
            memory: account.memory,
            time: account.time,
            share: account.share,
            at,
        };
        if let Some(before) = self.left.remove(&of) {
            left.memory.inherit(&before.memory, at);
            left.time.inherit(&before.time, looked_at, before.share);
        }
        self.left.insert(of, left);
    }

    fn store(&self, run: &RunDir) {
        let limits = self.all.iter().filter_map(|((slice, device), account)| {
            Some(Largest {
                slice: slice.clone(),
                device: device.clone(),
                bytes: account.largest?,
            })
        });
        let mut limits: Vec<Largest> = limits.collect();
        limits.sort_unstable();
        if let Err(fault) = records::store_limits(run, &limits) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
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
    fn inherit(&mut self, memory: &Memory, time: &Time, share: u32, at: u64, looked_at: u64) {
        let owed = self.time.owes();
        self.memory.inherit(memory, at);
        self.time.inherit(time, looked_at, share);
        self.is_debt_new |= owed == 0 && self.time.owes() > 0;
    }

    /// Returns whether its limit is larger than it was known to be.
    fn note_limit(&mut self, share: &DeviceShare) -> bool {
        let limit = Bytes(share.granted().0.saturating_add(share.spill_limit_bytes.0));
        // What an adopted slice had before is not known where no earlier agent wrote it down.
        let is_larger = match self.largest {
            None => !self.is_adopted,
            Some(largest) => limit > largest,
        };
        if is_larger {
            self.largest = Some(limit);
        }
        is_larger
    }
}
