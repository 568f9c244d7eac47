//! Shared parts of the process suites: a running page server, and children that are this test binary again.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use divvy_ledger::GrantSpec;
use divvy_ledger::attach::{self, Attached, Door, PageServer, Pages};

pub const MIB: u64 = 1 << 20;

/// A slice with its agent and its page server, served until the test ends.
pub struct Slice {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    pub pages: Pages,
}

impl Slice {
    pub fn new(memory_limit_bytes: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("attach.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let page_server = Arc::new(PageServer::new());
        let serving = Arc::clone(&page_server);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _outcome = serving.serve(&stream, Door::Container);
            }
        });
        let spec = GrantSpec {
            memory_limit_bytes,
            device_uuid: [7; 16],
            slice_id: "s",
            slice_name: "s",
            ..GrantSpec::default()
        };
        let pages = Pages::create(&spec).expect("pages");
        page_server.hold(&pages).expect("delivery");
        Self {
            _dir: dir,
            path,
            pages,
        }
    }

    pub fn attach(&self) -> Attached {
        attach::connect(&self.path, 0).expect("attach")
    }

    /// Reaps until no memory and no process is left. This may take a moment. A child that a parallel test is starting
    /// has copies of this process's descriptors until it calls exec, and with them its locks.
    pub fn expect_empty(&self) {
        let began = Instant::now();
        loop {
            self.pages.ledger.reap().expect("reap");
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{:?}",
                self.pages.ledger.processes().next()
            );
            if self.pages.ledger.total_used() == 0 && self.pages.ledger.processes().count() == 0 {
                return;
            }
            thread::yield_now();
        }
    }
}

/// A process that plays a role. It is killed when dropped.
pub struct Player {
    pub child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Player {
    /// Starts this test binary again, in the role `part`; its test `child` calls [`part`].
    pub fn start(part: &str, path: &Path) -> Self {
        let mut child = divvy_own_process::other("child")
            .env("DIVVY_TEST_PART", part)
            .env("DIVVY_SLICE", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdin, stdout }
    }

    /// The next line that the child prints, or `None` when it is gone.
    pub fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.stdout.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // The child's test harness prints too, and does not end its line before the test does.
            if let Some((_, said)) = line.split_once("::") {
                return Some(said.trim().to_owned());
            }
        }
    }

    #[track_caller]
    pub fn expect(&mut self, said: &str) {
        assert_eq!(self.hear().as_deref(), Some(said));
    }

    pub fn tell(&mut self, line: &str) {
        self.stdin.write_all(line.as_bytes()).expect("it listens");
        self.stdin.write_all(b"\n").expect("it listens");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is our child");
    }

    /// SIGKILL, and the wait for its end.
    pub fn kill(&mut self) {
        let _ended = self.child.kill();
        self.child.wait().expect("our child");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In a child: its role, and the path to attach by.
pub fn part() -> Option<(String, PathBuf)> {
    Some((
        std::env::var("DIVVY_TEST_PART").ok()?,
        std::env::var_os("DIVVY_SLICE")?.into(),
    ))
}

/// In a child: prints a line.
pub fn say(line: &str) {
    println!("::{line}");
}

/// In a child: the next line received, or the end.
pub fn told() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(0);
    }
    line.trim().to_owned()
}

/// Numbers that look random: xorshift64*.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}
