//! One slice on one device at one look: its memory beside its limit, and its time beside its charge and its share.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use divvy_model::{Bytes, DeviceRecord, OnOveruse, SliceRecord};

use super::Supervisor;
use super::account::Account;
use super::freezer::Freezer;
use super::register::Register;
use super::sight::OfSlice;
use super::slices::Slices;
use super::tracers::Killed;
use crate::api::events::EventKind;
use crate::decide::supervise::memory;
use crate::decide::supervise::time::{self, Step, Time};
use crate::leasing::Charge;
use crate::system::procs;

/// One slice on one device at one look.
pub(super) struct Turn<'a> {
    pub supervisor: &'a Supervisor,
    pub record: &'a SliceRecord,
    pub device: &'a DeviceRecord,
    pub account: &'a mut Account,
    pub register: &'a mut Register,
    pub freezer: &'a mut Freezer,
    pub killed: &'a mut Killed,
    pub slices: &'a Slices<'a>,
    /// When the figures are of, in nanoseconds.
    pub at: u64,
    /// The slice has ended, and processes of it live.
    pub has_ended: bool,
    /// The driver told something new of the device's use.
    pub is_told: bool,
}

impl Turn<'_> {
    /// Compares its memory with its limit. Where it is beyond that, returns for how long no look is needed.
    pub fn memory(&mut self, seen: &OfSlice) -> Option<Duration> {
        let share = self.record.shares.on(&self.device.uuid)?;
        self.note_blind(seen.is_blind);
        let mut limit = match self.has_ended {
            true => Bytes(0),
            false => Bytes(share.granted().0.saturating_add(share.spill_limit_bytes.0)),
        };
        if self.account.is_adopted && !self.has_ended {
            let held = seen.held.iter();
            let held = Bytes(held.fold(0_u64, |sum, (_, held)| sum.saturating_add(held.0)));
            // An earlier agent may have resized it to less than it holds. Where that wrote nothing down, it is what the slice
            // holds at the first look, and no more: its `divvy run` may never be heard of again.
            let largest = *self.account.largest.get_or_insert(limit.max(held));
            if self.record.usage_unknown || seen.is_blind {
                // What its ledger has is not known yet.
                limit = limit.max(largest);
            } else {
                self.account.is_adopted = false;
                if share.memory_used_bytes > share.granted() {
                    // The ledger is the tenant's to write: it may keep no more than it ever was allowed.
                    self.account.memory.allow_what_is_held(held.min(largest));
                }
            }
        }
        self.account.limit = limit;
        self.end_tracers();
        let there = seen.held.iter().map(|(id, memory)| {
            let has_ended = self.register.get(*id).is_none();
            memory::Held {
                id: *id,
                memory: *memory,
                accounted: self.accounted(id.pid),
                leaves: !has_ended && self.account.memory.is_ending(*id) && procs::is_leaving(id.pid),
                has_ended,
                returns: has_ended && !self.register.is_kept(*id),
            }
        });
        let processes: Vec<memory::Held> = there.collect();
        let context = self.supervisor.settings.get().limits(self.device).context;
        let found = self.account.memory.look(&memory::Look {
            at: self.at,
            limit,
            accounted: if self.has_ended {
                Bytes(0)
            } else {
                share.memory_used_bytes
            },
            context,
            processes: &processes,
        });
        for id in &found.unending {
            let message = format!(
                "process {} ({}) was to be ended and is still there: the system does not end it now, or it is another \
                 user's",
                id.pid,
                procs::command(id.pid)
            );
            self.tell(EventKind::OveruseReported, Some(*id), message);
        }
        if found.beyond.is_zero() {
            if std::mem::take(&mut self.account.is_frozen[0]) {
                self.tell(
                    EventKind::Thawed,
                    None,
                    "it holds no more than its limit again".into(),
                );
            }
            self.account.is_told[0] = false;
        }
        if let Some(target) = found.end {
            match self.record.terms.on_overuse {
                OnOveruse::End => self.end(target, found.beyond, &processes),
                OnOveruse::Freeze => {
                    if !self.account.is_frozen[0] {
                        self.supervisor.freezes.fetch_add(1, Relaxed);
                        let message = format!(
                            "its processes hold {} beyond its limit: they stand still until it is larger, or they are ended",
                            found.beyond
                        );
                        self.tell(EventKind::Frozen, None, message);
                    }
                    self.freeze(0, seen);
                }
                OnOveruse::Report => {
                    self.report(0, format!("its processes hold {} beyond its limit", found.beyond));
                }
            }
        }
        found.ends_in.map(Duration::from_nanos)
    }

    /// Compares its time with its charge and its share. Returns whether it is suspected, or in debt.
    /// `dead` is what is billed to it for processes that have ended, in nanoseconds.
    pub fn time(&mut self, seen: &OfSlice, dead: u64, charge: Option<&Charge>) -> bool {
        // What outlives its slice has no share of the device, and no lease.
        let nothing = Charge {
            slice_id: self.record.id.clone(),
            device_uuid: self.device.uuid.clone(),
            charged: 0,
            outlasted: 0,
            share: 0,
            counts: true,
            is_open: false,
        };
        let charge = charge.or(self.has_ended.then_some(&nothing));
        let Some(charge) = charge else {
            // It is shared in another way than by leases, or not leased out yet.
            self.account.is_frozen[1] = false;
            if std::mem::take(&mut self.account.share) > 0 {
                self.account.time = Time::default();
            }
            return false;
        };
        self.account.share = charge.share;
        let pays = self.account.time.pays();
        if self.is_told {
            self.account.time.note_told();
        }
        let ran = self.account.is_frozen[1] && self.freezer.went_on(&self.record.id);
        let step = self.account.time.look(&time::Look {
            at: self.at,
            used: &seen.used,
            dead,
            charged: charge.charged,
            outlasted: charge.outlasted,
            ran,
            share: charge.share,
            counts: charge.counts,
            is_open: charge.is_open,
        });
        let on_overuse = self.record.terms.on_overuse;
        match step {
            Step::Nothing => {}
            // Its processes go on at the end of the look, if it is to stand still on no other device.
            Step::Thaw => self.account.is_frozen[1] = false,
            Step::Freeze(_) | Step::Fails if on_overuse == OnOveruse::Report => {
                self.report(
                    1,
                    "its processes use the device past the gate, beyond its share".into(),
                );
            }
            Step::Test if on_overuse == OnOveruse::Report => {}
            Step::Freeze(_) | Step::Test => self.freeze(1, seen),
            Step::Fails if !seen.used.is_empty() => {
                let using = seen.used.iter().map(|(id, _)| *id).collect();
                let why = "is ended: it uses the device on and on, though its slice is frozen";
                self.end_these(using, why);
            }
            Step::Fails => self.report(
                1,
                "it is frozen, and its processes use the device on and on".into(),
            ),
        }
        // A slice that pays is frozen several times a second: that is told once.
        match (pays, self.account.time.pays(), step) {
            (false, true, Step::Freeze(owed)) if on_overuse != OnOveruse::Report => {
                self.supervisor.freezes.fetch_add(1, Relaxed);
                let ms = owed / 1_000_000;
                let word = match self.account.time.is_untrue() {
                    true => ", though it reports launches in flight: none was while it stood still",
                    false => "",
                };
                let message = format!(
                    "its processes used {ms} ms of the device beyond its share, past the gate{word}: they stand still until \
                     that is paid back"
                );
                self.tell(EventKind::Frozen, None, message);
            }
            (true, false, _) => {
                self.account.is_told[1] = false;
                if on_overuse != OnOveruse::Report {
                    let message = "it has paid back the time that it took, and took no more since";
                    self.tell(EventKind::Thawed, None, message.into());
                }
            }
            _ => {}
        }
        self.account.time.is_watched()
    }

    fn accounted(&self, pid: u32) -> Bytes {
        let mut processes = self.record.processes.iter();
        let known = processes.find(|process| process.pid == pid);
        known.map_or(Bytes(0), |process| process.memory_used_bytes)
    }
}
