//! A program of an attacker's that goes on until it is ended.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::wait::TIMEOUT;

/// See the module. Dropping it ends the program.
pub struct Hostile {
    child: Child,
    lines: Receiver<String>,
}

impl Hostile {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let output = child.stdout.take().expect("standard output is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line that it prints; nothing where it has ended.
    pub fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => panic!("nothing was printed within {TIMEOUT:?}"),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// The next line that it prints within this time.
    pub fn line_within(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends by itself, and returns what else it printed.
    pub fn rest(mut self) -> Vec<String> {
        let rest = self.lines.iter().collect();
        let _reaped = self.child.wait();
        rest
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
