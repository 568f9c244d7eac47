//! What a part works with: the programs beside it, the device that it asks, the place where its findings go.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::finding::{Failure, Finding, Verdict};
use crate::folder::{Folder, Sink};
use crate::full;
use crate::scrub::foreign;

/// The memory of a slice that has to hold a context and little more: on a GPU a context takes 512 MiB of it.
pub(crate) const ROOM: &str = "1GiB";

/// Words that come first when this program calls itself, as the kit is a verb of it.
pub(crate) static OWN_WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// See the module.
pub struct Kit {
    /// Which device to ask for; none: the machine's first one.
    pub device: Option<String>,
    /// Whether this is the short form: fewer rounds of everything.
    pub is_short: bool,
    /// Whether something was left out because no time was left.
    pub is_cut: bool,
    sink: Sink,
    until: Instant,
}

impl Kit {
    /// For a part that may take so long.
    ///
    /// # Errors
    /// The system's reason why nothing can be written down.
    pub fn new(
        results: &Folder,
        part: &str,
        device: Option<String>,
        is_short: bool,
        limit: Duration,
    ) -> std::io::Result<Self> {
        let sink = results.sink(part)?;
        Ok(Self {
            device,
            is_short,
            is_cut: false,
            sink,
            until: Instant::now() + limit,
        })
    }

    /// Whether the device is an emulated one.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.device
            .as_deref()
            .is_some_and(|device| device.starts_with("emulated:"))
    }

    /// Writes a finding down.
    ///
    /// # Errors
    /// The system's reason.
    pub fn found(&mut self, finding: &Finding) -> Result<(), Failure> {
        crate::run::wait_if_ended();
        let finding = match finding.verdict {
            Verdict::Fails => &Finding {
                says: full::with_reason(&finding.says),
                ..finding.clone()
            },
            _ => finding,
        };
        self.sink
            .put(finding)
            .map_err(|error| format!("a finding cannot be written down: {error}"))
    }

    /// Writes down that no time is left for a check.
    ///
    /// # Errors
    /// The system's reason.
    pub fn no_time(&mut self, check: impl Into<String>) -> Result<(), Failure> {
        self.is_cut = true;
        self.found(&Finding::skipped(check, "no time is left for it"))
    }

    /// How long this part still has.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// `divvy` with these words.
    #[must_use]
    pub fn divvy(words: &[&str]) -> Command {
        let mut command = Command::new(beside("divvy"));
        command.args(words).stdin(Stdio::null());
        command
    }

    /// `divvy run` with these flags, of a program that the caller adds. The device is the kit's own.
    #[must_use]
    pub fn slice(&self, flags: &[&str]) -> Command {
        Self::slice_of(self.device.as_deref(), flags)
    }

    /// The same on this device.
    #[must_use]
    pub fn slice_of(device: Option<&str>, flags: &[&str]) -> Command {
        let mut command = Self::divvy(&["run"]);
        if let Some(device) = device {
            command.args(["--device", device]);
        }
        command.args(flags).arg("--");
        command
    }

    /// This program again, as a tenant that does `word`: see `tenant.rs`.
    #[must_use]
    pub fn tenant_words(word: &str) -> Vec<std::ffi::OsString> {
        let own = std::env::current_exe().unwrap_or_else(|_| "divvy-kit".into());
        let mut words = vec![own.into_os_string()];
        words.extend(OWN_WORDS.get().into_iter().flatten().map(Into::into));
        words.extend(["tenant".into(), word.into()]);
        words
    }

    /// The same without a slice, on the machine's own driver.
    #[must_use]
    pub fn bare_tenant(word: &str) -> Command {
        let words = Self::tenant_words(word);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command
    }

    /// The same in a slice of these flags.
    #[must_use]
    pub fn tenant(&self, flags: &[&str], word: &str) -> Command {
        let mut command = self.slice(flags);
        command.args(Self::tenant_words(word));
        command
    }
}

/// A program of the kit's own, which lies beside this one.
#[must_use]
pub fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent()
        .map_or_else(|| name.into(), |folder| folder.join(name))
}

/// Runs a command to its end; what it printed. Why not, where it ended otherwise than well.
///
/// # Errors
/// The command's own last words.
pub fn output(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(ended_with(output.status, &output.stderr))
}

/// How a program ended, with its last words, or that it had none.
#[must_use]
pub(crate) fn ended_with(how: impl fmt::Display, said: &[u8]) -> Failure {
    match last_words(said) {
        words if words.is_empty() => format!("{how}, and it said nothing"),
        words => format!("{how}: {}", foreign(&words)),
    }
}

/// The end of what a command said, in one line.
#[must_use]
pub fn last_words(said: &[u8]) -> String {
    const MOST: usize = 400;
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let words = lines[lines.len().saturating_sub(4)..].join(" / ");
    let begin = words.char_indices().rev().nth(MOST).map_or(0, |(at, _)| at);
    words[begin..].to_owned()
}
