//! A tenant that can be talked to: a probe, or anything else that answers one JSON object per line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::isolation;
use crate::processes;
use crate::wait::{TIMEOUT, until};

/// A program in a slice, with its standard input and output in our hands.
pub struct Tenant {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The probe's own process, which `divvy run` started.
    pid: u32,
}

impl Tenant {
    /// Starts `command` and waits for its first line, `{"pid": …}`.
    pub fn start(command: Command) -> Self {
        Self::start_with_line(command).0
    }

    /// [`Tenant::start`], with all that the first line says.
    pub fn start_with_line(mut command: Command) -> (Self, Value) {
        let mut tenant = Self::launch(&mut command);
        let hello = tenant.answer();
        tenant.pid = hello["pid"]
            .as_u64()
            .and_then(|pid| pid.try_into().ok())
            .expect("a tenant says its process id");
        (tenant, hello)
    }

    /// Starts `command`, whose program has a pid namespace of its own. Its process id is not one of this namespace, so
    /// no process is signalled by it.
    pub fn start_in_container(command: Command) -> Self {
        let mut tenant = Self::start(command);
        tenant.pid = 0;
        tenant
    }

    fn launch(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let output = child.stdout.take().expect("standard output is piped");
        let input = child.stdin.take();
        let (sender, lines) = channel();
        // A thread, because a read from a pipe cannot be given up after a while.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            input,
            lines,
            pid: 0,
        }
    }

    /// Process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Process id by which the device knows it: its worker's, where it has one.
    pub fn device_pid(&self) -> u32 {
        let worker = isolation::asked_for().and_then(|_| processes::worker_of(self.pid));
        worker.unwrap_or(self.pid)
    }

    /// Process id of the `divvy run` above it.
    pub fn page_server(&self) -> u32 {
        self.child.id()
    }

    /// Sends one line and returns the answer.
    pub fn ask(&mut self, question: &str) -> Value {
        self.tell(question);
        self.answer()
    }

    /// Sends one line whose answer is read later.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the tenant's input is open");
        writeln!(input, "{line}").expect("the tenant reads");
    }

    /// The next line the tenant prints.
    pub fn answer(&mut self) -> Value {
        self.answer_within(TIMEOUT)
    }

    /// The same, of a tenant that has much to do first.
    pub fn answer_within(&mut self, limit: Duration) -> Value {
        match self.lines.recv_timeout(limit) {
            Ok(line) => serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in: {line}")),
            Err(RecvTimeoutError::Timeout) => panic!("the tenant did not answer within {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the tenant ended instead of answering: {:?}", self.child.wait())
            }
        }
    }

    /// Asks for memory and keeps it; the error's CUDA name when it is refused.
    ///
    /// # Errors
    /// The error's CUDA name.
    pub fn allocate(&mut self, bytes: u64) -> Result<(), String> {
        match self.ask(&format!("allocate {bytes}"))["error"].as_str() {
            None => Ok(()),
            Some(error) => Err(error.into()),
        }
    }

    /// Turns to another CUDA device; the error's CUDA name when it is refused.
    ///
    /// # Errors
    /// The error's CUDA name.
    pub fn use_device(&mut self, ordinal: u32) -> Result<(), String> {
        match self.ask(&format!("use {ordinal}"))["error"].as_str() {
            None => Ok(()),
            Some(error) => Err(error.into()),
        }
    }

    /// Gives back what was allocated last.
    pub fn free(&mut self) {
        let answer = self.ask("free");
        assert!(answer["error"].is_null(), "{answer}");
    }

    /// What cuMemGetInfo says: bytes free, bytes in all.
    pub fn memory(&mut self) -> (u64, u64) {
        let answer = self.ask("info");
        (
            answer["free_bytes"].as_u64().expect("free"),
            answer["total_bytes"].as_u64().expect("total"),
        )
    }

    /// Whether numbers come back from the device as they went.
    pub fn copies(&mut self) -> bool {
        self.ask("copy")["right"].as_bool().expect("a verdict")
    }

    /// Starts `count` probes as children of this one and returns their process ids.
    pub fn start_children(&mut self, count: usize) -> Vec<u32> {
        let answer = self.ask(&format!("start {count}"));
        let children = answer["children"].as_array().expect("a list of children");
        children
            .iter()
            .filter_map(|child| child["pid"].as_u64()?.try_into().ok())
            .collect()
    }

    /// Tells every child the same at once, and returns their answers.
    pub fn ask_children(&mut self, line: &str) -> Vec<Value> {
        let answer = self.ask(&format!("children {line}"));
        answer["answers"].as_array().expect("a list of answers").clone()
    }

    /// Sends a signal to the program itself, not to `divvy run`.
    pub fn signal(&self, signal: Signal) {
        processes::signal(self.pid, signal);
    }

    /// Ends the program by closing its input, and returns how `divvy run` ended.
    pub fn end(mut self) -> ExitStatus {
        self.input = None;
        self.wait()
    }

    /// Waits until `divvy run` has ended.
    pub fn wait(&mut self) -> ExitStatus {
        until("the tenant ends", || {
            self.child.try_wait().expect("a child can be waited for")
        })
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.input = None;
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if self.pid != 0 {
                processes::signal(self.pid, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
