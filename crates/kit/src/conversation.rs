//! A tenant that is talked to: a line to it, a line of JSON from it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ended::Heard;
use crate::finding::Failure;
use crate::kit::ended_with;
use crate::processes::end_tree;
use crate::scrub::foreign;

/// As much as is kept of its last words, in bytes.
const WORDS: usize = 16 << 10;

/// See the module. Dropping it ends the tenant.
pub struct Conversation {
    child: Child,
    answers: Receiver<String>,
    errors: Option<Heard>,
    until: Instant,
}

impl Conversation {
    /// Starts the tenant; answers what it says of itself first. After `limit` nothing that it says is waited for.
    ///
    /// # Errors
    /// Why it does not start, in its own words where it has any.
    pub fn start(mut command: Command, limit: Duration) -> Result<(Self, Value), Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name} does not start: {error}"))?;
        let (sender, answers) = channel();
        let stdout = child.stdout.take().ok_or("the tenant has no output")?;
        let _detached = spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let errors = child.stderr.take().map(|stream| Heard::of(stream, WORDS));
        let mut conversation = Self {
            child,
            answers,
            errors,
            until: Instant::now() + limit,
        };
        let hello = conversation.hear()?;
        Ok((conversation, hello))
    }

    /// The process that was started: `divvy run`, or the tenant itself.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says a line and hears the answer.
    ///
    /// # Errors
    /// How the tenant ended instead.
    pub fn ask(&mut self, line: &str) -> Result<Value, Failure> {
        self.say(line)?;
        self.hear()
    }

    /// Says a line.
    ///
    /// # Errors
    /// How the tenant ended instead.
    pub fn say(&mut self, line: &str) -> Result<(), Failure> {
        let said = self.child.stdin.as_mut().map(|input| writeln!(input, "{line}"));
        match said {
            Some(Ok(())) => Ok(()),
            _ => Err(self.last_words()),
        }
    }

    /// Hears a line.
    ///
    /// # Errors
    /// How the tenant ended instead, or that its time was up.
    pub fn hear(&mut self) -> Result<Value, Failure> {
        let left = self.until.saturating_duration_since(Instant::now());
        match self.answers.recv_timeout(left) {
            Ok(line) => {
                serde_json::from_str(&line).map_err(|_| format!("the tenant said: {}", foreign(line.trim())))
            }
            _ => Err(self.last_words()),
        }
    }

    fn last_words(&mut self) -> Failure {
        let is_late = self.until <= Instant::now();
        drop(self.child.stdin.take());
        // One that closed its output is about to end by itself, and how it does is what is told.
        let ended = match is_late {
            true => None,
            false => self.wait(),
        };
        end_tree(&mut self.child);
        let said = self.errors.as_ref().map(Heard::text).unwrap_or_default();
        match ended {
            Some(status) => ended_with(format_args!("the tenant ended, {status}"), &said),
            None if is_late => ended_with("the tenant did not answer in time", &said),
            None => ended_with("the tenant was ended", &said),
        }
    }

    /// For two seconds.
    fn wait(&mut self) -> Option<std::process::ExitStatus> {
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // Its input's end is its end.
        drop(self.child.stdin.take());
        if self.wait().is_none() {
            end_tree(&mut self.child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<(Conversation, Value), Failure> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Conversation::start(command, limit)
    }

    #[test]
    fn a_tenant_that_says_much_or_nothing_holds_nothing_up() {
        // More than a pipe holds, before the first answer.
        let long = Duration::from_secs(60);
        let (_tenant, hello) = shell("head -c 300000 /dev/zero >&2; echo 7; cat", long).expect("an answer");
        assert_eq!(hello, 7);
        let begun = Instant::now();
        let why = shell("echo waits >&2; sleep 60", Duration::from_millis(300)).map(drop);
        assert_eq!(why, Err("the tenant did not answer in time: waits".into()));
        assert!(begun.elapsed() < Duration::from_secs(20));
        let why = shell("echo no >&2; exit 3", long).map(drop);
        assert_eq!(why, Err("the tenant ended, exit status: 3: no".into()));
    }
}
