//! The recent events, and a signal for readers that wait for more. They are kept for the next agent. When the journal is full, the account with
//! the most events loses the oldest: a user that makes many pushes out its own.

pub(crate) mod history;
pub(crate) mod kept;
pub(crate) mod lines;
mod remembered;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::accounts::Accounts;
use crate::api::events::{EventKind, EventRecord};
use crate::api::viewer::Viewer;
use crate::journal::kept::{Entry, Kept};
use crate::journal::lines::Lines;
use crate::start::rundir::RunDir;
use crate::system::clock;

/// The number of events that are remembered.
const REMEMBERED: usize = 1000;

/// The number of events that are handed out at once: a slow reader holds no more than these.
const AT_ONCE: usize = 64;

/// An event to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incident {
    /// Its kind.
    pub kind: EventKind,
    /// The slice's id and name, for an event about a slice.
    pub slice: Option<(String, String)>,
    /// The slice's user.
    pub owner: Option<u32>,
    /// The device, for an event about a device.
    pub device: Option<String>,
    /// The process id of the `divvy run` in which it happened, if any.
    pub run: Option<u32>,
    /// The event in words.
    pub message: String,
}

/// The last events, oldest first.
#[derive(Debug)]
pub(crate) struct Journal {
    events: Mutex<VecDeque<Entry>>,
    /// The file that keeps them; it is written while they are locked.
    kept: Option<Mutex<Kept>>,
    /// The number of the last event.
    last: watch::Sender<u64>,
    /// The lines of each user that are written to the log too.
    pub lines: Lines,
    /// The agent's own user.
    agent: u32,
    accounts: Arc<Accounts>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            events: Mutex::default(),
            kept: None,
            last: watch::Sender::new(0),
            lines: Lines::default(),
            agent: 0,
            accounts: Arc::default(),
        }
    }
}

impl Journal {
    /// An empty journal for an agent of this user.
    #[cfg(test)]
    pub fn of(agent: u32) -> Self {
        Self {
            agent,
            ..Self::default()
        }
    }

    /// The journal of a run directory, for an agent of this user: it goes on where the agent before ended.
    pub fn at(run: RunDir, agent: u32, accounts: Arc<Accounts>) -> Self {
        let mut events = VecDeque::new();
        let mut number = 0;
        for entry in kept::left(&run) {
            // Numbers rise, whatever the file says.
            if entry.event.number <= number {
                continue;
            }
            number = entry.event.number;
            if events.len() == REMEMBERED {
                make_room(&mut events, &accounts);
            }
            events.push_back(entry);
        }
        Self {
            events: Mutex::new(events),
            kept: Some(Mutex::new(Kept::of(run))),
            last: watch::Sender::new(number),
            agent,
            accounts,
            ..Self::default()
        }
    }

    /// Whether a line about an action of user `uid` is to be written to the log now. Root and the agent's own user have
    /// no limit.
    pub fn may_log(&self, uid: u32) -> bool {
        uid == 0 || uid == self.agent || self.may_tell(uid)
    }

    /// The same, with the limit for everyone.
    pub fn may_tell(&self, uid: u32) -> bool {
        self.lines.allow(self.accounts.one(uid))
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event.
    pub fn note(&self, incident: Incident) {
        let mut events = self.events();
        let number = self.last.borrow().saturating_add(1);
        if events.len() == REMEMBERED {
            make_room(&mut events, &self.accounts);
        }
        let (slice_id, slice) = incident.slice.unzip();
        let event = EventRecord {
            number,
            at: clock::now(),
            kind: incident.kind,
            slice_id,
            slice,
            device_uuid: incident.device,
            run_pid: incident.run,
            message: incident.message,
        };
        events.push_back(Entry {
            owner: incident.owner,
            event,
        });
        if let Some(kept) = &self.kept {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.add(events.iter());
        }
        // This is done under the lock, so that numbers come in order.
        self.last.send_replace(number);
    }

    /// Records an event of a slice.
    pub fn tell(&self, kind: EventKind, record: &divvy_model::SliceRecord, message: impl Into<String>) {
        self.note(Incident {
            kind,
            slice: Some((record.id.clone(), record.name.clone())),
            owner: Some(record.uid),
            device: Some(record.shares.first.device_uuid.clone()),
            run: None,
            message: message.into(),
        });
    }

    /// Records what a process of the `divvy run` with process id `run` did in a slice.
    pub fn tell_run(
        &self,
        kind: EventKind,
        record: &divvy_model::SliceRecord,
        run: Option<u32>,
        message: impl Into<String>,
    ) {
        self.note(Incident {
            kind,
            slice: Some((record.id.clone(), record.name.clone())),
            owner: Some(record.uid),
            device: None,
            run,
            message: message.into(),
        });
    }

    /// The next events after number `since`, as far as they are remembered and this viewer may see them.
    pub fn next(&self, since: u64, viewer: Viewer) -> Vec<EventRecord> {
        let events = self.events();
        let known = events.iter().filter(|entry| entry.event.number > since);
        known
            .take(AT_ONCE)
            .map(|entry| viewer.event(entry.event.clone(), entry.owner))
            .collect()
    }

    /// All remembered events after number `since`.
    #[cfg(test)]
    pub fn after(&self, since: u64) -> Vec<EventRecord> {
        let events = self.events();
        let known = events.iter().filter(|entry| entry.event.number > since);
        known.map(|entry| entry.event.clone()).collect()
    }

    /// Changes with each event.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

/// Forgets the oldest event of the account with the most.
fn make_room(events: &mut VecDeque<Entry>, accounts: &Accounts) {
    let account = |entry: &Entry| entry.owner.map(|owner| accounts.one(owner));
    let mut counts: HashMap<Option<u32>, usize> = HashMap::new();
    for entry in events.iter() {
        *counts.entry(account(entry)).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let oldest = events
        .iter()
        .position(|entry| Some(account(entry)) == most.map(|(account, _)| account));
    events.remove(oldest.unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_makes_many_pushes_out_none_of_another() {
        let journal = Journal::default();
        let of = |owner: u32, message: &str| Incident {
            owner: Some(owner),
            ..incident(message)
        };
        journal.note(incident("begins"));
        for n in 0..5 {
            journal.note(of(1000, &n.to_string()));
        }
        for n in 0..5 * REMEMBERED {
            journal.note(of(1001, &n.to_string()));
        }
        let all = journal.after(0);
        assert_eq!(all.len(), REMEMBERED);
        let first: Vec<&str> = all.iter().take(6).map(|event| event.message.as_str()).collect();
        assert_eq!(first, ["begins", "0", "1", "2", "3", "4"]);
        assert!(all.is_sorted_by_key(|event| event.number));
        // The events come in parts, none twice and none left out.
        let (mut since, mut read) = (0, Vec::new());
        loop {
            let next = journal.next(since, Viewer::ROOT);
            let Some(last) = next.last() else { break };
            assert!(next.len() <= AT_ONCE);
            since = last.number;
            read.extend(next);
        }
        assert_eq!(read, all);
    }

    fn incident(message: &str) -> Incident {
        Incident {
            kind: EventKind::Overdue,
            slice: None,
            owner: None,
            device: None,
            run: None,
            message: message.into(),
        }
    }

    #[test]
    fn the_next_agent_goes_on_where_the_last_one_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let file = run.path().join("events.jsonl");
        let messages = |journal: &Journal| {
            let all = journal.after(0);
            all.iter().map(|event| event.message.clone()).collect::<Vec<_>>()
        };
        let journal = Journal::at(run.clone(), 0, Arc::default());
        journal.note(incident("one"));
        journal.note(Incident {
            owner: Some(1000),
            ..incident("two")
        });
        drop(journal);
        // It was killed within a line.
        let mut text = std::fs::read(&file).expect("a file");
        text.extend(b"{\"event\": {\"number\": 3, \"kin");
        std::fs::write(&file, &text).expect("written");
        let next = Journal::at(run.clone(), 0, Arc::default());
        next.note(incident("three"));
        assert_eq!(messages(&next), ["one", "two", "three"]);
        assert!(next.after(0).iter().map(|event| event.number).eq(1..=3));
        assert_eq!(kept::read_events(&run), next.after(0));
        assert_eq!(kept::left(&run)[1].owner, Some(1000), "it is shown as before");
        // It does not grow, and what is no event harms nothing.
        let long = "x".repeat(1000);
        (0..5000).for_each(|_| next.note(incident(&long)));
        assert!(std::fs::metadata(&file).expect("a file").len() < 4 << 20);
        std::fs::write(&file, b"\xff\n{}\n[1]\n").expect("written");
        assert!(messages(&Journal::at(run, 0, Arc::default())).is_empty());
    }

    #[test]
    fn a_disk_that_takes_no_events_stops_no_agent() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        std::fs::create_dir(run.path().join("events.jsonl")).expect("something that is no file");
        let journal = Journal::at(run.clone(), 0, Arc::default());
        journal.note(incident("one"));
        assert_eq!(journal.after(0).len(), 1);
        std::fs::remove_dir(run.path().join("events.jsonl")).expect("removed");
        journal.note(incident("two"));
        assert_eq!(
            kept::read_events(&run),
            journal.after(0),
            "both, as soon as it can"
        );
    }

    #[test]
    fn events_are_numbered_and_the_oldest_are_forgotten() {
        let journal = Journal::default();
        let mut follower = journal.follow();
        assert!(journal.after(0).is_empty());
        for n in 1..=REMEMBERED + 7 {
            journal.note(incident(&n.to_string()));
        }
        assert!(follower.has_changed().expect("open"));
        assert_eq!(*follower.borrow_and_update(), REMEMBERED as u64 + 7);
        let all = journal.after(0);
        assert_eq!((all.len(), all[0].number), (REMEMBERED, 8));
        let last = journal.after(REMEMBERED as u64 + 6);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].message, (REMEMBERED + 7).to_string());
    }
}
