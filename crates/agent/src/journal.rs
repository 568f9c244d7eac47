//! What happened lately, for whoever asks, and a bell for whoever waits for more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::api::events::{EventKind, EventRecord};
use crate::clock;
use crate::leasing::Incident;

/// How many events are remembered.
const REMEMBERED: usize = 1000;

/// The last events, oldest first.
#[derive(Debug)]
pub(crate) struct Journal {
    events: Mutex<VecDeque<EventRecord>>,
    /// The number of the last one.
    last: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            events: Mutex::default(),
            last: watch::Sender::new(0),
        }
    }
}

impl Journal {
    fn events(&self) -> MutexGuard<'_, VecDeque<EventRecord>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes something down.
    pub fn note(&self, incident: Incident) {
        let mut events = self.events();
        let number = *self.last.borrow() + 1;
        if events.len() == REMEMBERED {
            events.pop_front();
        }
        let (slice_id, slice) = incident.slice.unzip();
        events.push_back(EventRecord {
            number,
            at: clock::now(),
            kind: incident.kind,
            slice_id,
            slice,
            device_uuid: incident.device,
            run_pid: incident.run,
            message: incident.message,
        });
        // Under the lock, so that numbers come in order.
        self.last.send_replace(number);
    }

    /// Writes down what happened to a slice.
    pub fn tell(&self, kind: EventKind, record: &divvy_model::SliceRecord, message: impl Into<String>) {
        self.note(Incident {
            kind,
            slice: Some((record.id.clone(), record.name.clone())),
            device: Some(record.device_uuid.clone()),
            run: None,
            message: message.into(),
        });
    }

    /// Writes down what a process of the `divvy run` with process id `run` did in a slice.
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
            device: None,
            run,
            message: message.into(),
        });
    }

    /// The events after that of number `since`, as far as they are remembered.
    pub fn after(&self, since: u64) -> Vec<EventRecord> {
        let events = self.events();
        let known = events.iter().filter(|event| event.number > since);
        known.cloned().collect()
    }

    /// Changes with each event.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incident(message: &str) -> Incident {
        Incident {
            kind: EventKind::Overdue,
            slice: None,
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
