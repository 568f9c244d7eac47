//! The caller's view. Names, users and figures are for all users of the host. A slice's programs, with arguments and
//! process ids, are for the slice's user, the agent's own user and root.

use divvy_model::{SliceRecord, UnmanagedRecord};

use crate::api::events::{EventKind, EventRecord};
use crate::api::history::HistoryRecord;
use crate::system::peer::Peer;

/// A user that looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Viewer {
    uid: u32,
    sees_all: bool,
}

impl Viewer {
    /// The viewer for a caller. `agent` is the agent's own user.
    pub fn of(peer: Peer, agent: u32) -> Self {
        Self {
            uid: peer.uid,
            sees_all: peer.is_trusted(agent),
        }
    }

    /// A viewer that sees everything.
    #[cfg(test)]
    pub const ROOT: Self = Self {
        uid: 0,
        sees_all: true,
    };

    fn sees(self, owner: Option<u32>) -> bool {
        self.sees_all || owner == Some(self.uid)
    }

    /// A slice as this viewer may see it.
    pub fn slice(self, mut slice: SliceRecord) -> SliceRecord {
        if self.sees(Some(slice.uid)) {
            return slice;
        }
        slice.command.clear();
        slice.processes.clear();
        slice.runs.clear();
        slice.containers.clear();
        slice.page_server_pid = None;
        slice.lifetime_anchor = None;
        // Both fields name processes and paths.
        slice.warnings.clear();
        slice.trouble = None;
        slice
    }

    /// Ended slices as this viewer may see them.
    pub fn history(self, mut ended: Vec<HistoryRecord>) -> Vec<HistoryRecord> {
        for record in &mut ended {
            if !self.sees(Some(record.uid)) {
                record.command.clear();
            }
        }
        ended
    }

    /// Slices as this viewer may see them.
    pub fn slices(self, slices: Vec<SliceRecord>) -> Vec<SliceRecord> {
        slices.into_iter().map(|slice| self.slice(slice)).collect()
    }

    /// Processes outside any slice as this viewer may see them. Other users' process numbers are shown, because `/proc`
    /// shows them to all.
    pub fn unmanaged(self, mut found: Vec<UnmanagedRecord>) -> Vec<UnmanagedRecord> {
        for process in &mut found {
            if !self.sees(process.uid) {
                process.command.clear();
            }
        }
        found
    }

    /// An event about a slice of user `owner`, or about none, as this viewer may see it.
    pub fn event(self, mut event: EventRecord, owner: Option<u32>) -> EventRecord {
        if owner.is_none() || self.sees(owner) {
            return event;
        }
        event.run_pid = None;
        // These events name a program or a process, or hold text that a caller wrote.
        let names = matches!(
            event.kind,
            EventKind::Bypassed
                | EventKind::Refused
                | EventKind::Oom
                | EventKind::OveruseEnded
                | EventKind::OveruseReported
        );
        if names {
            event.message = "told to the slice's user".into();
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> SliceRecord {
        serde_json::from_value(serde_json::json!({
            "id": "0123abcd", "name": "train", "uid": 1000, "device_uuid": "GPU-1", "memory_limit_bytes": 4,
            "memory_used_bytes": 3, "isolation": "cooperative", "policy": "strict", "created_at": "now",
            "command": ["train", "--token", "secret"], "page_server_pid": 7, "trouble": null, "warnings": ["process 9"],
            "processes": [{ "pid": 9, "command": "train", "memory_used_bytes": 3 }],
            "runs": [{ "pid": 8, "start_ticks": 1, "command": ["train"] }], "lifetime_anchor": { "path": "/home/a/x" },
        }))
        .expect("a record")
    }

    #[test]
    fn others_see_names_and_figures_and_no_words_of_what_runs() {
        let viewer = |uid, sees_all| Viewer { uid, sees_all };
        for own in [viewer(1000, false), viewer(0, true), Viewer::ROOT] {
            assert_eq!(own.slice(slice()), slice());
        }
        let others = viewer(1001, false).slice(slice());
        let text = serde_json::to_string(&others).expect("JSON");
        for hidden in ["secret", "train\"]", "process 9", "/home/a", "start_ticks"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        assert!(others.processes.is_empty() && others.page_server_pid.is_none());
        assert_eq!((others.name.as_str(), others.uid), ("train", 1000));
        assert_eq!(others.shares.first.memory_used_bytes.0, 3);

        let process = |uid| UnmanagedRecord {
            pid: 9,
            command: "secret".into(),
            uid,
            device_uuid: "GPU-1".into(),
            memory_used_bytes: None,
        };
        let found =
            viewer(1001, false).unmanaged(vec![process(Some(1000)), process(Some(1001)), process(None)]);
        let commands: Vec<&str> = found.iter().map(|process| process.command.as_str()).collect();
        assert_eq!(commands, ["", "secret", ""]);
    }

    #[test]
    fn an_event_names_no_program_to_others() {
        let event = |kind| EventRecord {
            number: 1,
            at: "now".into(),
            kind,
            slice_id: Some("1".into()),
            slice: Some("train".into()),
            device_uuid: None,
            run_pid: Some(8),
            message: "process 9 (secret) passes".into(),
        };
        let viewer = Viewer {
            uid: 1001,
            sees_all: false,
        };
        let told = viewer.event(event(EventKind::Bypassed), Some(1000));
        assert!(!told.message.contains("secret") && told.run_pid.is_none());
        assert_eq!(told.slice.as_deref(), Some("train"));
        assert_eq!(
            viewer.event(event(EventKind::Bypassed), Some(1001)),
            event(EventKind::Bypassed)
        );
        assert_eq!(
            viewer.event(event(EventKind::Expired), None),
            event(EventKind::Expired)
        );
    }
}
