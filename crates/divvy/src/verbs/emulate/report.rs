//! What `divvy emulate check` found: the emulated driver's lines, read and put in words.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

/// What was found in a program.
#[derive(Debug, Serialize)]
pub struct CheckReport {
    /// The program's exit status, as a shell has it: 128 and the number of the signal that ended it.
    pub exit_status: u8,
    /// Processes of the program that opened the device.
    pub processes: u64,
    /// Allocations and objects that were not given back. Findings of the kind `leak` list them with `--leaks`.
    pub leaks: u64,
    /// What was not looked at, in sentences without a full stop. Not there where all was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
    /// What is wrong, in the order in which it was found: one record for each place.
    pub findings: Vec<Found>,
}

/// Something that is wrong, at one place.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Found {
    /// The process that did it.
    pub pid: u32,
    /// Its number among the findings of that process.
    pub number: u64,
    /// `race`, `uninitialized`, `out_of_bounds`, `use_after_free`, `misaligned`, `barrier`, `invalid_free`,
    /// `invalid_copy`, `fault`, `leak`, or `more` for the rest of a long list.
    pub kind: String,
    /// How many threads did it, in all launches.
    pub count: u64,
    /// One sentence.
    pub message: String,
    /// The kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The first thread that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Site>,
    /// The thread that it races with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<Site>,
    /// The allocation that was meant, or is the nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Owner>,
}

/// A thread at an instruction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Site {
    /// The block's place in the grid: x, y, z.
    pub block: Vec<u32>,
    /// The thread's place in the block: x, y, z.
    pub thread: Vec<u32>,
    /// The source file and the line, where the PTX has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The line in the PTX text, from 1.
    pub ptx_line: u32,
    /// That line.
    pub instruction: String,
}

/// An allocation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Owner {
    /// Its first address, in hexadecimal.
    pub address: String,
    /// Its size in bytes, as the program asked for it.
    pub bytes: u64,
    /// The call that made it, or the variable that it is.
    pub made_by: String,
}

impl CheckReport {
    /// Reads what the processes of a program have left in a folder.
    ///
    /// # Errors
    /// [`Code::Internal`].
    pub fn read(folder: &Path, exit_status: u8) -> Result<Self, Fault> {
        let cannot = |error: &dyn std::error::Error| {
            Fault::new(Code::Internal, "cannot read what was found").because(error)
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|error| cannot(&error))? {
            files.push(entry.map_err(|error| cannot(&error))?.path());
        }
        files.sort();
        let mut report = Self {
            exit_status,
            processes: 0,
            leaks: 0,
            unchecked: Vec::new(),
            findings: Vec::new(),
        };
        for file in files {
            let text = std::fs::read_to_string(file).map_err(|error| cannot(&error))?;
            report.add(&text);
        }
        report.leaks = report
            .findings
            .iter()
            .filter(|found| found.kind == "leak")
            .count() as u64;
        Ok(report)
    }

    /// The lines of one process: the last one of a number holds. One that a killed process did not finish is left out.
    fn add(&mut self, text: &str) {
        let mut by_number = BTreeMap::new();
        for found in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Found>(line).ok())
        {
            match found.kind.as_str() {
                "begun" => self.processes += 1,
                "unchecked" if self.unchecked.contains(&found.message) => {}
                "unchecked" => self.unchecked.push(found.message),
                _ => drop(by_number.insert((found.pid, found.number), found)),
            }
        }
        self.findings.extend(by_number.into_values());
    }

    pub fn leave_leaks_out(&mut self) {
        self.findings.retain(|found| found.kind != "leak");
    }
}

/// The report for people.
pub fn in_words(report: &CheckReport) -> String {
    let mut text = String::new();
    for (n, found) in report.findings.iter().enumerate() {
        let _ = writeln!(
            text,
            "{}. {}{}: {}",
            n + 1,
            kind(&found.kind),
            times(found),
            found.message
        );
        if let Some(site) = &found.site {
            let kernel = found.kernel.as_deref().unwrap_or_default();
            let _ = writeln!(text, "   in kernel {kernel}, {}", where_is(site));
            instruction(&mut text, site);
        }
        if let Some(other) = &found.other {
            let _ = writeln!(text, "   the other is {}", where_is(other));
            instruction(&mut text, other);
        }
        text.push('\n');
    }
    let _ = match (report.findings.len(), report.processes) {
        (0, 0) => writeln!(text, "nothing was checked: the program opened no CUDA device"),
        (0, _) => writeln!(text, "nothing wrong was found"),
        (1, _) => writeln!(text, "1 finding"),
        (count, _) => writeln!(text, "{count} findings"),
    };
    for what in &report.unchecked {
        let _ = writeln!(text, "not checked: {what}");
    }
    let listed = report.findings.iter().any(|found| found.kind == "leak");
    if report.leaks > 0 && !listed {
        let _ = writeln!(
            text,
            "{} not given back at the end: `--leaks` lists what",
            match report.leaks {
                1 => "1 allocation or kind of object was".to_owned(),
                count => format!("{count} allocations or kinds of objects were"),
            }
        );
    }
    text
}

fn kind(kind: &str) -> &str {
    match kind {
        "race" => "race",
        "uninitialized" => "uninitialised read",
        "out_of_bounds" => "out of bounds",
        "use_after_free" => "use after free",
        "misaligned" => "misaligned access",
        "barrier" => "barrier",
        "invalid_free" => "invalid free",
        "invalid_copy" => "invalid copy",
        "fault" => "fault",
        "leak" => "leak",
        _ => "more",
    }
}

fn times(found: &Found) -> String {
    match found.count {
        1 => String::new(),
        count => format!(", {count} times"),
    }
}

fn where_is(site: &Site) -> String {
    let list = |of: &[u32]| of.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let place = match &site.source {
        Some(source) => source.clone(),
        None => format!("PTX line {}", site.ptx_line),
    };
    if site.block.is_empty() {
        return format!("at {place}");
    }
    format!(
        "block ({}), thread ({}), at {place}",
        list(&site.block),
        list(&site.thread)
    )
}

fn instruction(text: &mut String, site: &Site) {
    if !site.instruction.is_empty() {
        let _ = writeln!(text, "       {}", site.instruction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"pid":7,"number":18446744073709551615,"kind":"begun","count":1,"message":""}
{"pid":7,"number":0,"kind":"race","count":1,"message":"write of 4 bytes at shared+0 races with a read","kernel":"k","site":{"block":[1,0,0],"thread":[2,0,0],"source":"a.cu:7","ptx_line":30,"instruction":"st.shared.u32 [%r1], %r2;"},"other":{"block":[1,0,0],"thread":[3,0,0],"source":null,"ptx_line":31,"instruction":""}}
{"pid":7,"number":1,"kind":"leak","count":1,"message":"an allocation of 4 bytes made by cuMemAlloc was never freed"}
{"pid":7,"number":0,"kind":"race","count":5,"message":"write of 4 bytes at shared+0 races with a read","kernel":"k","site":{"block":[1,0,0],"thread":[2,0,0],"source":"a.cu:7","ptx_line":30,"instruction":"st.shared.u32 [%r1], %r2;"},"other":{"block":[1,0,0],"thread":[3,0,0],"source":null,"ptx_line":31,"instruction":""}}
{"pid":7,"number":2,"ki"#;

    #[test]
    fn the_last_line_of_a_number_holds_and_reads_well() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("7.jsonl"), LINES).expect("written");
        let mut report = CheckReport::read(folder.path(), 0).expect("a report");
        assert_eq!((report.processes, report.leaks, report.findings.len()), (1, 1, 2));
        report.leave_leaks_out();
        assert_eq!(
            in_words(&report),
            "1. race, 5 times: write of 4 bytes at shared+0 races with a read\n   in kernel k, block (1,0,0), \
             thread (2,0,0), at a.cu:7\n       st.shared.u32 [%r1], %r2;\n   the other is block (1,0,0), thread \
             (3,0,0), at PTX line 31\n\n1 finding\n1 allocation or kind of object was not given back at the end: \
             `--leaks` lists what\n"
        );
    }

    #[test]
    fn what_was_not_looked_at_is_said_once() {
        let line = |pid| {
            format!(
                "{{\"pid\":{pid},\"number\":0,\"kind\":\"unchecked\",\"count\":1,\"message\":\"much\"}}\n"
            )
        };
        let begun = "{\"pid\":7,\"number\":1,\"kind\":\"begun\",\"count\":1,\"message\":\"\"}\n";
        let folder = tempfile::tempdir().expect("a folder");
        for pid in [7, 8] {
            std::fs::write(folder.path().join(format!("{pid}.jsonl")), line(pid) + begun).expect("written");
        }
        let report = CheckReport::read(folder.path(), 0).expect("a report");
        assert_eq!(in_words(&report), "nothing wrong was found\nnot checked: much\n");
    }

    #[test]
    fn a_program_without_cuda_is_told_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let report = CheckReport::read(folder.path(), 0).expect("a report");
        assert!(in_words(&report).starts_with("nothing was checked"));
    }
}
