//! Processes of a slice over the emulated driver, which follow the test's commands, line by line.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};

use divvy_abi::Table;
use divvy_ledger::attach::connect;
use divvy_limiter::{below, tenant};

use crate::emulated::{self, cu};
use crate::support::Slice;

const SOCKET: &str = "SOCKET";
const ACCOUNTS: &str = "ACCOUNTS";

/// Two emulated devices in `folder`, by their UUIDs, with 1 GiB of each for a slice.
pub fn one_gib_of_two_devices(folder: &Path) -> [(u64, [u8; 16]); 2] {
    let found = divvy_device::devices("h100*2", folder).expect("two devices");
    [0, 1].map(|at: usize| (1 << 30, found[at].uuid.0))
}

/// A process of a slice.
pub struct Member(Child);

/// Whether this process is one.
pub fn is_member() -> bool {
    std::env::var_os(SOCKET).is_some()
}

impl Member {
    /// Starts this program again, to run the test of this name, which calls [`obey`].
    pub fn new(slice: &Slice, folder: &Path, test: &str) -> Self {
        let child = divvy_own_process::command(test)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env("DIVVY_EMULATED", format!("h100*{}", slice.more.len() + 1))
            .env(ACCOUNTS, (slice.more.len() + 1).to_string())
            .env("DIVVY_RUN_DIR", folder)
            .env(SOCKET, &slice.socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        Self(child)
    }

    /// Sends it a line; returns its reply.
    pub fn tell(&mut self, line: &str) -> String {
        writeln!(self.0.stdin.as_mut().expect("piped"), "{line}").expect("it lives");
        let lines = BufReader::with_capacity(1, self.0.stdout.as_mut().expect("piped")).lines();
        lines
            .map(|line| line.expect("text"))
            .find_map(|line| line.strip_prefix('@').map(str::to_owned))
            .expect("it answers")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills it, by SIGKILL.
    pub fn kill(mut self) {
        self.0.kill().expect("it lives");
        self.0.wait().expect("it is ours");
    }

    /// Lets it end.
    pub fn end(mut self) {
        drop(self.0.stdin.take());
        let mut rest = String::new();
        let _all = self.0.stdout.take().expect("piped").read_to_string(&mut rest);
        assert!(self.0.wait().expect("it ends").success(), "{rest}");
    }
}

/// Joins the slice, makes a context, and replies to each line by `answer`, which gets its first word and the rest.
pub fn obey(answer: impl FnMut(&str, &str) -> String) {
    obey_on(&divvy_emulator::TABLE, answer);
}

/// The same over the emulated driver with some functions replaced by the test.
pub fn obey_on(driver: &'static Table, mut answer: impl FnMut(&str, &str) -> String) {
    let socket = std::env::var_os(SOCKET).expect("the slice's socket");
    below::stand_on(driver);
    let accounts = std::env::var(ACCOUNTS).map_or(1, |count| count.parse().expect("a number"));
    let attached =
        (0..accounts).map(|account| connect(socket.as_ref(), account).expect("the server answers"));
    tenant::enter(attached.collect());
    cu!(cuInit(0));
    emulated::context();
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        println!("\n@{}", answer(word, rest));
    }
}
