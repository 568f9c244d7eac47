//! A program that runs to its end, or to the end of its time.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::finding::Failure;
use crate::kit::ended_with;
use crate::processes::end_tree;

/// As much as is kept of what a program says, in bytes: the rest is read and dropped, so that it never waits for a reader.
const MOST: usize = 64 << 20;
/// A program's own children may hold its streams: so long they are waited for when it has ended.
const STREAMS: Duration = Duration::from_secs(1);

/// What became of it.
#[derive(Debug)]
pub(crate) struct Ended {
    /// None where it was ended when its time was up.
    status: Option<ExitStatus>,
    /// How long it might take.
    limit: Duration,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ended {
    /// Whether it ended well.
    pub fn is_well(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended otherwise, with its last words.
    pub fn why(&self) -> Failure {
        match self.status {
            Some(status) => ended_with(status, &self.stderr),
            None => ended_with(
                format_args!("it was ended after {} s", self.limit.as_secs()),
                &self.stderr,
            ),
        }
    }
}

/// What a stream said so far. A thread of its own reads it.
#[derive(Clone)]
pub(crate) struct Heard {
    text: Arc<Mutex<(Vec<u8>, bool)>>,
}

impl Heard {
    /// Reads a stream to its end, and keeps this many bytes of it.
    pub fn of(mut stream: impl Read + Send + 'static, most: usize) -> Self {
        let text = Arc::new(Mutex::new((Vec::new(), false)));
        let heard = Self { text };
        let into = heard.clone();
        let _detached = spawn(move || {
            let mut chunk = [0_u8; 8192];
            loop {
                let read = stream.read(&mut chunk).unwrap_or(0);
                let mut text = into.text.lock().unwrap_or_else(PoisonError::into_inner);
                if read == 0 {
                    text.1 = true;
                    return;
                }
                text.0.extend_from_slice(&chunk[..read]);
                // The last words are those that say why.
                let over = text.0.len().saturating_sub(most);
                text.0.drain(..over);
            }
        });
        heard
    }

    /// What it said, when the stream has ended or has been waited for.
    pub fn text(&self) -> Vec<u8> {
        let begun = Instant::now();
        loop {
            let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
            if text.1 || begun.elapsed() > STREAMS {
                return text.0.clone();
            }
            drop(text);
            sleep(Duration::from_millis(5));
        }
    }
}

/// Runs a command to its end, or for so long: then it is ended with all that it started.
///
/// # Errors
/// Why it does not start.
pub(crate) fn within(command: &mut Command, limit: Duration) -> Result<Ended, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    let stdout = child.stdout.take().map(|stream| Heard::of(stream, MOST));
    let stderr = child.stderr.take().map(|stream| Heard::of(stream, MOST));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if begun.elapsed() < limit => {
                // Soon at first: a short program's time is measured around this.
                let pause = begun.elapsed().as_micros().clamp(200, 10_000);
                sleep(Duration::from_micros(u64::try_from(pause / 8).unwrap_or(1000)));
            }
            Ok(None) => {
                end_tree(&mut child);
                break None;
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let text = |heard: Option<Heard>| heard.map(|heard| heard.text()).unwrap_or_default();
    Ok(Ended {
        status,
        limit,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        within(command.args(["-c", script]), limit).expect("sh")
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children_and_last_words() {
        let begun = Instant::now();
        let ended = shell(
            "echo first; echo last >&2; sleep 60 & sleep 60",
            Duration::from_millis(300),
        );
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(!ended.is_well());
        assert_eq!(ended.stdout, b"first\n");
        assert!(ended.why().contains("it was ended after") && ended.why().ends_with("last"));
    }

    #[test]
    fn what_is_said_is_read_however_much_it_is() {
        let long = Duration::from_secs(60);
        let ended = shell("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2", long);
        assert!(ended.is_well());
        assert_eq!((ended.stdout.len(), ended.stderr.len()), (300_000, 300_000));
        let why = shell("echo no >&2; exit 3", long).why();
        assert_eq!(why, "exit status: 3: no");
        let silent = shell("exit 3", long).why();
        assert_eq!(silent, "exit status: 3, and it said nothing");
    }
}
