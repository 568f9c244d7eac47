//! A second process of a test, and the lines that the two exchange.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Stdio};

/// What precedes a line that is meant for the other process: the harness writes as well.
const MARK: &str = "peer-says:";

/// The other process; killed when dropped.
pub struct Peer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts this test again in a role, with these settings.
    pub fn start(test: &str, role: &str, run_directory: &str, settings: &[(&str, &str)]) -> Peer {
        let mut command = super::process(test, role, run_directory);
        for (name, value) in settings {
            command.env(name, value);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Peer { process, lines }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line it says.
    pub fn hear(&mut self) -> String {
        for line in self.lines.by_ref().map_while(Result::ok) {
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].to_owned();
            }
        }
        panic!("the other process ended early: {:?}", self.process.wait());
    }

    /// Says a line to it, and gives its answer.
    pub fn ask(&mut self, line: &str) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.hear()
    }

    /// Says a line to it, and waits for no answer.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Ends it without any warning.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Lets it end by itself.
    pub fn end(mut self) {
        drop(self.process.stdin.take());
        for _ in self.lines.by_ref() {}
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Says a line to the process that started this one.
pub fn say(line: impl std::fmt::Display) {
    println!("{MARK}{line}");
}

/// The next line from the process that started this one; None at its end.
pub fn listen() -> Option<String> {
    std::io::stdin().lines().next().and_then(Result::ok)
}
