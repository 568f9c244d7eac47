//! The members of a slice, by what the kernel says: descendants of its `divvy run`s, processes that its page server
//! pinned when they attached, and processes of containers that have its box mounted. The processes in its ledger count
//! for nothing here, because a tenant writes that.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use divvy_ledger::attach;
use divvy_model::{ProcessRecord, SliceRecord, SliceState};
use rustix::process::Signal;

use crate::life::records::control_socket;
use crate::lookout::bypass;
use crate::start::rundir::RunDir;
use crate::state::Shared;
use crate::system::in_slice::in_slice;
use crate::system::privilege;
use crate::system::procs::{self, Table};
use crate::system::watched::Watched;

/// The largest age of the page server's answer for lists and audits. A decision asks again.
const FRESH: Duration = Duration::from_secs(1);
/// The number of processes from a ledger that are looked at for each slice and look.
const LOOKED_AT: usize = 64;
/// The number of ledger processes that are passed over for that: those that are members already.
const PASSED: usize = 256;

/// A process of a slice, pinned, so that its number cannot come to mean another.
#[derive(Debug)]
pub(crate) struct Member {
    watched: Watched,
    /// It came over a socket that is open to any user: a container's.
    any_user: bool,
}

impl Member {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.watched.pid()
    }

    /// Sends it a signal, if the slice's user might signal it, or it is a container's; returns whether it was sent.
    pub fn signal(&self, uid: u32, signal: Signal) -> bool {
        let may =
            self.any_user || procs::owner(self.pid()) == Some(uid) || privilege::may_signal(self.pid(), uid);
        if may && self.watched.is_alive() {
            return self.watched.signal_as(self.any_user, uid, signal);
        }
        false
    }
}

/// The pinned members, by slice.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    slices: Mutex<HashMap<String, Known>>,
}

#[derive(Debug, Default)]
struct Known {
    members: Vec<Watched>,
    asked_at: Option<Instant>,
    /// The ledger slot at which the next look begins.
    next: usize,
}

impl Known {
    fn has(&self, pid: u32) -> bool {
        self.members
            .iter()
            .any(|known| known.pid() == pid && known.is_alive())
    }
}

impl Known {
    /// Some of these processes that are no members yet. The next look goes on behind them, so that many of them hide
    /// none.
    fn not_noted(&mut self, processes: &[ProcessRecord]) -> Vec<u32> {
        let first = self.next.min(processes.len());
        let (before, after) = processes.split_at(first);
        let (mut found, mut passed) = (Vec::new(), 0);
        for process in after.iter().chain(before).take(PASSED) {
            if found.len() == LOOKED_AT {
                break;
            }
            passed += 1;
            if !self.has(process.pid) {
                found.push(process.pid);
            }
        }
        self.next = match processes.len() {
            0 => 0,
            count => (first + passed) % count,
        };
        found
    }
}

impl Roster {
    fn slices(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks a lasting slice's page server which processes attached, unless it answered a moment ago. It is the agent's
    /// own process; where it does not answer, the last answer stays.
    fn ask(&self, run: &RunDir, slice: &SliceRecord, fresh: Duration) {
        if !slice.lasting {
            return;
        }
        let known = |known: &Known| known.asked_at.is_some_and(|asked| asked.elapsed() < fresh);
        if self.slices().get(&slice.id).is_some_and(known) {
            return;
        }
        // The list is not locked here, because others may wait for it.
        let told = attach::members(&control_socket(run, &slice.id)).unwrap_or_default();
        let mut slices = self.slices();
        let known = slices.entry(slice.id.clone()).or_default();
        known.asked_at = Some(Instant::now());
        known.members.retain(Watched::is_alive);
        for member in told {
            if !known.has(member.pid) {
                known
                    .members
                    .extend(Watched::again(member.pid, member.start_ticks));
            }
        }
    }

    /// Notes processes of a ledger that are below the slice's `divvy run`: they stay members when the `divvy run` has
    /// ended.
    fn note_below(&self, slice: &SliceRecord) {
        let roots = roots(slice);
        if roots.is_empty() {
            return;
        }
        let news: Vec<u32> = {
            let mut slices = self.slices();
            let known = slices.entry(slice.id.clone()).or_default();
            known.members.retain(Watched::is_alive);
            known.not_noted(&slice.processes)
        };
        let found: Vec<Watched> = news.into_iter().filter_map(|pid| below(pid, &roots)).collect();
        if !found.is_empty() {
            self.slices()
                .entry(slice.id.clone())
                .or_default()
                .members
                .extend(found);
        }
    }

    /// Whether this process is a pinned member, and lives.
    pub fn has(&self, id: &str, pid: u32) -> bool {
        self.slices().get(id).is_some_and(|known| known.has(pid))
    }

    fn pids(&self, id: &str) -> Vec<u32> {
        let slices = self.slices();
        let members = slices.get(id).map(|known| known.members.iter());
        let living = members.into_iter().flatten().filter(|known| known.is_alive());
        living.map(Watched::pid).collect()
    }

    /// As if this process had attached to the slice.
    #[cfg(test)]
    pub fn attach(&self, id: &str, pid: u32) {
        let mut slices = self.slices();
        let known = slices.entry(id.to_owned()).or_default();
        known.members.extend(Watched::now(pid));
    }

    /// Keeps the entries of these slices only.
    fn keep_only(&self, ids: &[&str]) {
        self.slices().retain(|id, _| ids.contains(&id.as_str()));
    }
}

/// The processes of slices.
#[derive(Debug)]
pub(crate) struct Members {
    pub run: RunDir,
    pub roster: Roster,
}

impl Members {
    /// The numbers of a slice's processes, parents first: for figures and lists.
    pub fn of(&self, slice: &SliceRecord) -> Vec<u32> {
        self.of_in(slice, &LazyCell::new(Table::read))
    }

    /// The same by a table of all processes that was read before.
    pub fn of_in(&self, slice: &SliceRecord, table: &impl Deref<Target = Table>) -> Vec<u32> {
        self.roster.ask(&self.run, slice, FRESH);
        let mut pids: Vec<u32> = Vec::new();
        for root in roots(slice) {
            // The agent may be a child of the very `divvy run` that started it, and the page servers are the agent's
            // children.
            pids.extend(table.tree(root.pid(), std::process::id()).split_off(1));
        }
        let known: HashSet<u32> = pids.iter().copied().collect();
        let attached = self.roster.pids(&slice.id).into_iter();
        pids.extend(attached.filter(|pid| !known.contains(pid)));
        pids
    }

    /// A slice's processes, pinned: to be signalled or counted before it is deleted.
    pub fn pinned(&self, slice: &SliceRecord) -> Vec<Member> {
        self.roster.ask(&self.run, slice, Duration::ZERO);
        let roots = roots(slice);
        let mut members: Vec<Member> = Vec::new();
        for root in &roots {
            let tree = procs::tree(root.pid(), std::process::id()).split_off(1);
            let found = tree.into_iter().filter_map(|pid| below(pid, &roots));
            members.extend(found.map(|watched| Member {
                watched,
                any_user: false,
            }));
        }
        let has = |members: &[Member], pid: u32| members.iter().any(|member| member.pid() == pid);
        let vouched = self
            .roster
            .pids(&slice.id)
            .into_iter()
            .filter(|pid| !has(&members, *pid));
        let vouched: Vec<Member> = vouched
            .filter_map(|pid| {
                let watched = Watched::now(pid)?;
                // It is still a member after it is pinned: this is the same process.
                self.roster.has(&slice.id, pid).then_some(Member {
                    watched,
                    // A job's processes are its user's, as those of a run are.
                    any_user: slice.lasting && slice.job.is_none(),
                })
            })
            .collect();
        members.extend(vouched);
        if slice.lasting {
            let inside = bypass::containers::members(&self.run, slice);
            let pinned: Vec<Watched> = inside.iter().filter_map(|pid| Watched::now(*pid)).collect();
            // The members are read again, now that no number can come to mean another.
            let still = bypass::containers::members(&self.run, slice);
            let found = pinned
                .into_iter()
                .filter(|process| still.contains(&process.pid()) && !has(&members, process.pid()));
            let found: Vec<Member> = found
                .map(|watched| Member {
                    watched,
                    any_user: true,
                })
                .collect();
            members.extend(found);
        } else if slice.state == SliceState::Orphaned {
            // Its `divvy run` is gone, and with it the tree: the pages that they have mapped identify the programs of
            // its user.
            let left = in_slice(slice.uid, &slice.id).unwrap_or_default();
            let left: Vec<Member> = left
                .into_iter()
                .filter(|process| !has(&members, process.pid()))
                .map(|watched| Member {
                    watched,
                    any_user: false,
                })
                .collect();
            members.extend(left);
        }
        members.retain(|member| member.watched.is_alive());
        members
    }

    /// Asks the page servers of a user's lasting slices for the attached processes, before the agent decides in which
    /// slice a caller is.
    pub fn ask_page_servers(&self, state: &Shared, uid: u32) {
        let records: Vec<SliceRecord> = {
            let state = state.lock();
            let slices = state.slices.values().map(|slice| &slice.record);
            slices
                .filter(|record| record.lasting && record.uid == uid)
                .cloned()
                .collect()
        };
        for record in &records {
            self.roster.ask(&self.run, record, Duration::from_millis(100));
        }
    }

    /// Notes the processes of each slice, now and then.
    pub fn note(&self, shown: &[SliceRecord]) {
        for slice in shown {
            self.roster.ask(&self.run, slice, FRESH);
            self.roster.note_below(slice);
        }
        let ids: Vec<&str> = shown.iter().map(|slice| slice.id.as_str()).collect();
        self.roster.keep_only(&ids);
    }
}

/// The living `divvy run`s of a slice: their descendants are in it.
pub(crate) fn roots(slice: &SliceRecord) -> Vec<Watched> {
    let known: Vec<(u32, u64)> = match (slice.lasting, slice.state, slice.page_server_pid) {
        (true, ..) => slice.runs.iter().map(|run| (run.pid, run.start_ticks)).collect(),
        (false, SliceState::Orphaned, _) | (false, _, None) => Vec::new(),
        (false, _, Some(page_server)) => vec![(page_server, slice.page_server_start_ticks)],
    };
    let living = known
        .into_iter()
        .filter_map(|(pid, began)| Watched::again(pid, began));
    living.collect()
}

/// The process, pinned, if it is below one of these.
fn below(pid: u32, roots: &[Watched]) -> Option<Watched> {
    const DEEPEST: usize = 256;
    let watched = Watched::now(pid)?;
    let mut at = pid;
    for _ in 0..DEEPEST {
        at = procs::parent(at).filter(|above| *above > 1 && *above != at)?;
        if let Some(root) = roots.iter().find(|root| root.pid() == at) {
            // Both live after the walk between them, so no number in it meant another process.
            return (root.is_alive() && watched.is_alive()).then_some(watched);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_what_is_below_a_living_root_is_pinned() {
        let own = Watched::now(std::process::id()).expect("we live");
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat runs");
        let found = below(child.id(), std::slice::from_ref(&own)).expect("it is ours");
        assert_eq!(found.pid(), child.id());
        let above = procs::parent(std::process::id()).expect("a parent");
        assert!(below(above, std::slice::from_ref(&own)).is_none());
        assert!(
            below(own.pid(), std::slice::from_ref(&own)).is_none(),
            "a root is none"
        );
        assert!(below(1, &[own]).is_none());
        child.kill().expect("ours");
        child.wait().expect("reaped");
        assert!(!found.is_alive());
    }

    #[test]
    fn a_crowd_is_looked_at_in_turns() {
        let crowd: Vec<ProcessRecord> = (1..=150)
            .map(|pid| ProcessRecord {
                pid,
                command: String::new(),
                memory_used_bytes: divvy_model::Bytes(0),
                memory_spilled_bytes: divvy_model::Bytes(0),
            })
            .collect();
        let mut known = Known::default();
        let looks: Vec<Vec<u32>> = (0..3).map(|_| known.not_noted(&crowd)).collect();
        assert_eq!(looks[0], (1..=64).collect::<Vec<u32>>());
        assert_eq!(looks[1], (65..=128).collect::<Vec<u32>>());
        assert_eq!(looks[2], (129..=150).chain(1..=42).collect::<Vec<u32>>());
        assert!(known.not_noted(&[]).is_empty());
        assert_eq!(known.not_noted(&crowd[..2]), [1, 2], "each once");
    }

    #[test]
    fn what_a_ledger_says_makes_no_member() {
        let mut slice: SliceRecord = serde_json::from_value(serde_json::json!({
            "id": "0123abcd", "name": "a", "uid": 0, "device_uuid": "GPU-0", "memory_limit_bytes": 1,
            "memory_used_bytes": 0, "isolation": "cooperative", "policy": "strict", "created_at": "",
            "processes": [{"pid": 1, "command": "init", "memory_used_bytes": 0}],
            "page_server_pid": std::process::id(),
        }))
        .expect("a record");
        slice.page_server_start_ticks = procs::start_ticks(std::process::id()).expect("we live");
        let roster = Roster::default();
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat runs");
        roster.note_below(&slice);
        assert!(roster.pids("0123abcd").is_empty() && !roster.has("0123abcd", 1));
        slice.processes[0].pid = child.id();
        roster.note_below(&slice);
        assert_eq!(roster.pids("0123abcd"), [child.id()], "it is below us");
        roster.keep_only(&[]);
        assert!(roster.pids("0123abcd").is_empty());
        child.kill().expect("ours");
        child.wait().expect("reaped");
    }
}
