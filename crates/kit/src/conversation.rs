//! A tenant that is talked to: a line to it, a line of JSON from it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::finding::Failure;

/// See the module. Dropping it ends the tenant.
pub struct Conversation {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Conversation {
    /// Starts the tenant; answers what it says of itself first.
    ///
    /// # Errors
    /// Why it does not start, in its own words where it has any.
    pub fn start(mut command: Command) -> Result<(Self, Value), Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name} does not start: {error}"))?;
        let answers = child.stdout.take().map(BufReader::new);
        let answers = answers.ok_or("the tenant has no output")?;
        let mut conversation = Self { child, answers };
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
    /// How the tenant ended instead.
    pub fn hear(&mut self) -> Result<Value, Failure> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(length) if length > 0 => {
                serde_json::from_str(&line).map_err(|_| format!("the tenant said: {}", line.trim()))
            }
            _ => Err(self.last_words()),
        }
    }

    fn last_words(&mut self) -> Failure {
        drop(self.child.stdin.take());
        let _ended = self.child.kill();
        let mut said = String::new();
        if let Some(errors) = self.child.stderr.take() {
            // What it said before it ended; a child of its own may hold the pipe open.
            for line in BufReader::new(errors).lines().take(8).map_while(Result::ok) {
                said.push_str(line.trim());
                said.push_str(" / ");
            }
        }
        let ended = self.child.wait();
        let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("the tenant ended, {status}: {said}")
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // Its input's end is its end.
        drop(self.child.stdin.take());
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
