//! What was found: one record for each place, with a count, written to a file as lines of JSON.
//!
//! A record is written when it is new, and again when its count has changed: the last line of a number holds. So what a
//! process found is there however it ends.

use divvy_device::log;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Different findings of a process, at most. What comes after is counted as one.
const MOST: usize = 500;

/// A finding's kind, as records have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    OutOfBounds,
    UseAfterFree,
    Misaligned,
    Uninitialized,
    Race,
    Barrier,
    InvalidFree,
    InvalidCopy,
    Fault,
    Leak,
    /// More findings than are kept.
    More,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::OutOfBounds => "out_of_bounds",
            Kind::UseAfterFree => "use_after_free",
            Kind::Misaligned => "misaligned",
            Kind::Uninitialized => "uninitialized",
            Kind::Race => "race",
            Kind::Barrier => "barrier",
            Kind::InvalidFree => "invalid_free",
            Kind::InvalidCopy => "invalid_copy",
            Kind::Fault => "fault",
            Kind::Leak => "leak",
            Kind::More => "more",
        }
    }
}

/// A thread at an instruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    pub block: [u32; 3],
    pub thread: [u32; 3],
    /// `file:line`, where the PTX says so.
    pub source: Option<String>,
    /// Line in the PTX text; 0 where it is not known.
    pub ptx_line: u32,
    pub instruction: String,
}

/// An allocation, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub address: u64,
    pub bytes: u64,
    pub made_by: String,
}

/// Something that is wrong.
#[derive(Debug, Clone)]
pub struct Finding {
    pub kind: Kind,
    /// One sentence without a full stop.
    pub message: String,
    pub kernel: Option<String>,
    pub site: Option<Site>,
    /// The other thread of a race.
    pub other: Option<Site>,
    pub allocation: Option<Owner>,
}

/// Findings at one place are one: the kind, the kernel, the instruction, and the other's instruction.
type Key = (Kind, Option<String>, u32, u32, Option<u64>);

struct Kept {
    finding: Finding,
    count: u64,
    /// The count that was written last.
    told: u64,
}

/// The findings of this process.
pub struct Findings {
    /// Where they are written.
    file: PathBuf,
    kept: Mutex<(Vec<Kept>, HashMap<Key, usize>)>,
    /// What has been said of what is not checked.
    unchecked: Mutex<Vec<&'static str>>,
}

impl Findings {
    pub fn new(folder: PathBuf) -> Findings {
        Findings {
            file: folder.join(format!("{}.jsonl", std::process::id())),
            kept: Mutex::default(),
            unchecked: Mutex::default(),
        }
    }

    /// Says that this process is checked.
    pub fn begin(&self) {
        self.append(&format!(
            "{{\"pid\":{},\"number\":{},\"kind\":\"begun\",\"count\":1,\"message\":\"\"}}\n",
            std::process::id(),
            u64::MAX
        ));
    }

    /// Says once what the checker did not look at. `what` is plain text without quotation marks.
    pub fn unchecked(&self, what: &'static str) {
        let mut said = self.unchecked.lock().unwrap_or_else(PoisonError::into_inner);
        if said.contains(&what) {
            return;
        }
        said.push(what);
        self.append(&format!(
            "{{\"pid\":{},\"number\":{},\"kind\":\"unchecked\",\"count\":1,\"message\":\"{what}\"}}\n",
            std::process::id(),
            u64::MAX
        ));
    }

    /// Notes a finding, `count` times. `at` tells apart those without an instruction.
    pub fn add(
        &self,
        finding: impl FnOnce() -> Finding,
        kind: Kind,
        at: (Option<&str>, u32, u32, Option<u64>),
        count: u64,
    ) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (list, by_key) = &mut *kept;
        let key: Key = (kind, at.0.map(str::to_owned), at.1, at.2, at.3);
        if let Some(known) = by_key.get(&key) {
            list[*known].count += count;
            return;
        }
        if list.len() >= MOST {
            let known = *by_key.entry((Kind::More, None, 0, 0, None)).or_insert_with(|| {
                list.push(Kept {
                    finding: Finding {
                        kind: Kind::More,
                        message: format!("more than {MOST} different findings: these are the others"),
                        kernel: None,
                        site: None,
                        other: None,
                        allocation: None,
                    },
                    count: 0,
                    told: 0,
                });
                list.len() - 1
            });
            list[known].count += count;
            return;
        }
        let finding = finding();
        log::line(format_args!("check: {}", finding.message));
        by_key.insert(key, list.len());
        list.push(Kept {
            finding,
            count,
            told: 0,
        });
        self.write(list);
    }

    /// Writes the counts that have changed.
    pub fn flush(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut kept.0);
    }

    fn write(&self, list: &mut [Kept]) {
        let mut text = String::new();
        for (number, kept) in list
            .iter_mut()
            .enumerate()
            .filter(|(_, kept)| kept.told != kept.count)
        {
            kept.told = kept.count;
            line(&mut text, number, kept);
        }
        if !text.is_empty() {
            self.append(&text);
        }
    }

    fn append(&self, text: &str) {
        // Opened for each write: the descriptors of this process are the program's.
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.file)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(why) = written {
            log::once(
                "check",
                format_args!("cannot write {}: {why}", self.file.display()),
            );
        }
    }
}

fn line(text: &mut String, number: usize, kept: &Kept) {
    let finding = &kept.finding;
    let _ = write!(
        text,
        "{{\"pid\":{},\"number\":{number},\"kind\":\"{}\",\"count\":{},\"message\":{}",
        std::process::id(),
        finding.kind.name(),
        kept.count,
        quoted(&finding.message)
    );
    if let Some(kernel) = &finding.kernel {
        let _ = write!(text, ",\"kernel\":{}", quoted(kernel));
    }
    for (name, site) in [("site", &finding.site), ("other", &finding.other)] {
        if let Some(site) = site {
            let _ = write!(text, ",\"{name}\":{}", of_site(site));
        }
    }
    if let Some(owner) = &finding.allocation {
        let _ = write!(
            text,
            ",\"allocation\":{{\"address\":\"{:#x}\",\"bytes\":{},\"made_by\":{}}}",
            owner.address,
            owner.bytes,
            quoted(&owner.made_by)
        );
    }
    text.push_str("}\n");
}

fn of_site(site: &Site) -> String {
    let list = |of: [u32; 3]| format!("[{},{},{}]", of[0], of[1], of[2]);
    let source = site.source.as_deref().map_or("null".to_owned(), quoted);
    format!(
        "{{\"block\":{},\"thread\":{},\"source\":{source},\"ptx_line\":{},\"instruction\":{}}}",
        list(site.block),
        list(site.thread),
        site.ptx_line,
        quoted(&site.instruction)
    )
}

/// A string of JSON.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if u32::from(letter) < 0x20 => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_once_and_its_count_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let findings = Findings::new(folder.path().to_owned());
        let finding = || Finding {
            kind: Kind::Race,
            message: "a \"race\"\n".into(),
            kernel: Some("k".into()),
            site: Some(Site::default()),
            other: None,
            allocation: None,
        };
        for _ in 0..3 {
            findings.add(finding, Kind::Race, (Some("k"), 1, 2, None), 2);
        }
        findings.flush();
        findings.flush();
        let file = folder.path().join(format!("{}.jsonl", std::process::id()));
        let text = std::fs::read_to_string(file).expect("written");
        let counts: Vec<&str> = text
            .lines()
            .map(|line| line.split("\"count\":").nth(1).expect("a count"))
            .collect();
        assert_eq!(counts.len(), 2, "{text}");
        assert!(
            counts[0].starts_with("2,") && counts[1].starts_with("6,"),
            "{text}"
        );
        assert!(text.contains(r#""message":"a \"race\"\u000a""#), "{text}");
    }
}
