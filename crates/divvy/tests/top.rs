//! `divvy top` and `divvy events`: plain where there is no screen, and a terminal that is left as it was found.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use common::{Host, kill, until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// A terminal of the test's own, with `divvy top` on it.
struct Screen {
    child: Child,
    keys: File,
    slave: File,
    before: Termios,
    shown: Arc<Mutex<String>>,
}

impl Screen {
    fn open(host: &Host) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("ours");
        unlockpt(&master).expect("usable");
        let name = ptsname(&master, Vec::new())
            .expect("a name")
            .into_string()
            .expect("text");
        let slave = File::options()
            .read(true)
            .write(true)
            .open(name)
            .expect("its other side");
        let size = Winsize {
            ws_row: 24,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).expect("a size");
        let before = tcgetattr(&slave).expect("its settings");
        let end = || Stdio::from(slave.try_clone().expect("a copy"));
        let child = host
            .divvy(&["top", "--interval", "100ms"])
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("divvy starts");
        let keys = File::from(master);
        let mut reader = keys.try_clone().expect("a copy");
        let shown = Arc::new(Mutex::new(String::new()));
        let into = shown.clone();
        // A thread, because the program stops when its output has no reader.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                into.lock().expect("unbroken").push_str(&text);
            }
        });
        Self {
            child,
            keys,
            slave,
            before,
            shown,
        }
    }

    fn shows(&self, what: &str) {
        until(&format!("the screen shows {what:?}"), || {
            self.shown.lock().expect("unbroken").contains(what)
        });
    }

    /// It has ended, and the terminal is as it was.
    fn restored(mut self) {
        self.child.wait().expect("it ends");
        // Away from the screen of its own, and the cursor is back.
        self.shows("\x1b[?1049l");
        self.shows("\x1b[?25h");
        let after = tcgetattr(&self.slave).expect("its settings");
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
    }
}

#[test]
fn whatever_ends_it_the_terminal_is_as_it_was() {
    let host = Host::new();
    let _tenant = host.idle("trainer", "1GiB");
    for ending in ["q", "\x03", "TERM", "HUP"] {
        let mut screen = Screen::open(&host);
        screen.shows("\x1b[?1049h");
        screen.shows("trainer");
        let raw = tcgetattr(&screen.slave).expect("its settings");
        assert_ne!(raw.local_modes, screen.before.local_modes, "it took the terminal");
        match ending {
            "TERM" | "HUP" => kill(screen.child.id(), ending),
            keys => screen.keys.write_all(keys.as_bytes()).expect("typed"),
        }
        screen.restored();
    }
}

#[test]
fn a_refusal_does_not_touch_the_terminal() {
    let host = Host::new();
    std::fs::write(host.run_dir(), "").expect("something else");
    let mut screen = Screen::open(&host);
    assert!(!screen.child.wait().expect("it ends").success());
    screen.shows("error[D0040]");
    assert!(!screen.shown.lock().expect("unbroken").contains("\x1b[?1049h"));
}

#[test]
fn without_a_screen_it_is_a_table_or_a_document() {
    let host = Host::new();
    let empty = host.text(&["top", "--once"]);
    assert!(
        empty.starts_with("SLICE") && empty.lines().count() == 1,
        "{empty}"
    );
    let _one = host.idle("one", "1GiB");
    host.text(&["resize", "one", "--compute", "30%", "--cap", "hard"]);
    let table = host.text(&["top", "--once"]);
    let row = table.lines().find(|line| line.starts_with("one")).expect("a row");
    assert!(row.contains("30% hard") && row.contains("1 GiB"), "{table}");
    let document = host.json(&["top", "--once"]);
    let item = &document["items"][0];
    assert_eq!(
        (&document["kind"], &item["slice"]),
        (&"Usage".into(), &"one".into())
    );
    assert_eq!(
        (&item["share"], &item["memory_limit_bytes"]),
        (&"30% hard".into(), &(1_u64 << 30).into())
    );
    assert_eq!(document["devices"][0]["promised_ratio"], 0.3);
    // Again and again, a line each, for as long as there is a reader.
    let mut child = host
        .divvy(&["top", "--interval", "100ms", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let out = child.stdout.take().expect("piped");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(out)).take(2);
    for line in lines {
        let line: serde_json::Value = serde_json::from_str(&line.expect("text")).expect("a document a line");
        assert_eq!(line["kind"], "Usage");
    }
    assert!(child.wait().expect("it ends without a reader").success());
}

#[test]
fn events_outlive_their_agent() {
    let host = Host::new();
    let numbers = || -> Vec<(u64, String)> {
        let told = host.text(&["events", "-o", "json"]);
        let events = told
            .lines()
            .map(|line| serde_json::from_str(line).expect("an event"));
        let of = |event: serde_json::Value| {
            let kind = event["kind"].as_str().expect("a kind").to_owned();
            (event["number"].as_u64().expect("a number"), kind)
        };
        events.map(of).collect()
    };
    host.text(&["run", "--memory", "1GiB", "--", "true"]);
    host.text(&["agent", "stop"]);
    let before = numbers();
    assert!(before.iter().any(|(_, kind)| kind == "slice_ended"), "{before:?}");
    let last = before.last().expect("an event").0.to_string();
    assert_eq!(host.text(&["events", "--since", &last]), "");
    host.text(&["run", "--memory", "1GiB", "--", "true"]);
    let after = numbers();
    assert!(
        after.starts_with(&before) && after.len() > before.len(),
        "{before:?}, {after:?}"
    );
    assert!(after.is_sorted_by(|one, next| one.0 < next.0), "{after:?}");
}

#[test]
fn tables_in_a_pipe_say_of_when_they_are() {
    let host = Host::new();
    let mut child = host
        .divvy(&["top", "--interval", "100ms"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let out = child.stdout.take().expect("piped");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(out)).map(|line| line.expect("text"));
    let lines: Vec<String> = lines.take(5).collect();
    // A time, a table, a line that is empty, and again.
    assert!(lines[0].starts_with("20") && lines[0].ends_with('Z'), "{lines:?}");
    assert!(lines[1].starts_with("SLICE") && lines[2].is_empty(), "{lines:?}");
    assert!(lines[3] > lines[0] && lines[4] == lines[1], "{lines:?}");
    child.wait().expect("it ends without a reader");
    // One alone is a table alone.
    assert!(host.text(&["top", "-n", "1"]).starts_with("SLICE"));
}

#[test]
fn events_tell_what_happened() {
    let host = Host::new();
    assert_eq!(host.text(&["events"]), "", "no agent, no events");
    let (status, said) = host.refused(&["events", "--follow"]);
    assert_eq!((status, said.contains("error[D0030]")), (3, true), "{said}");
    host.text(&["slice", "create", "alice", "--memory", "1GiB"]);
    host.text(&["resize", "alice", "--compute", "30%"]);
    let told = host.text(&["events", "-o", "json"]);
    let events: Vec<serde_json::Value> = told
        .lines()
        .map(|line| serde_json::from_str(line).expect("a document a line"))
        .collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["kind"].as_str()).collect();
    assert!(
        kinds.contains(&"slice_created") && kinds.contains(&"slice_resized"),
        "{told}"
    );
    let created = events
        .iter()
        .find(|event| event["kind"] == "slice_created")
        .expect("told");
    assert_eq!(created["slice"], "alice");
    let last = events.last().expect("some")["number"].to_string();
    assert_eq!(host.text(&["events", "--since", &last]), "");
    let mut follower = host
        .divvy(&["events", "--follow", "--since", &last])
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let out = follower.stdout.take().expect("piped");
    host.text(&["slice", "delete", "alice"]);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(out));
    let line = lines.next().expect("a line").expect("text");
    assert!(line.contains("slice_ended") && line.contains("alice"), "{line}");
    follower.kill().expect("killed");
    follower.wait().expect("reaped");
}
