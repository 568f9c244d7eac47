//! The recent events, and a signal for readers that wait for more. When the journal is full, the user with the most
//! events loses the oldest: a user that makes many pushes out its own.

pub(crate) mod history;
pub(crate) mod lines;
mod remembered;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::api::events::{EventKind, EventRecord};
use crate::api::viewer::Viewer;
use crate::journal::lines::Lines;
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
    /// The number of the last event.
    last: watch::Sender<u64>,
    /// The lines of each user that are written to the log too.
    pub lines: Lines,
    /// The agent's own user.
    agent: u32,
}

#[derive(Debug)]
struct Entry {
    /// The slice's user, for an event about a slice.
    owner: Option<u32>,
    event: EventRecord,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            events: Mutex::default(),
            last: watch::Sender::new(0),
            lines: Lines::default(),
            agent: 0,
        }
    }
}

impl Journal {
    /// An empty journal for an agent of this user.
    pub fn of(agent: u32) -> Self {
        Self {
            agent,
            ..Self::default()
        }
    }

    /// Whether a line about an action of user `uid` is to be written to the log now. Root and the agent's own user have
    /// no limit.
    pub fn may_log(&self, uid: u32) -> bool {
        uid == 0 || uid == self.agent || self.lines.allow(uid)
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event.
    pub fn note(&self, incident: Incident) {
        let mut events = self.events();
        let number = *self.last.borrow() + 1;
        if events.len() == REMEMBERED {
            make_room(&mut events);
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

/// Forgets the oldest event of the user with the most.
fn make_room(events: &mut VecDeque<Entry>) {
    let mut counts: HashMap<Option<u32>, usize> = HashMap::new();
    for entry in events.iter() {
        *counts.entry(entry.owner).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let oldest = events
        .iter()
        .position(|entry| Some(entry.owner) == most.map(|(owner, _)| owner));
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
