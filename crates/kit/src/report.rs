//! All that was found, as one document and as one page. Nothing in either tells whose machine it was.

use std::fmt::Write as _;
use std::io;

use serde::{Deserialize, Serialize};

use crate::finding::{Figure, Finding, Unit, Verdict};
use crate::folder::{Ending, Folder, Outcome};
use crate::machine::{Machine, date};
use crate::part::PARTS;
use crate::scrub::Scrub;

/// The document, `report.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this form.
    pub form: u32,
    /// The version of Divvy.
    pub divvy: String,
    /// Where it was run.
    pub machine: Machine,
    /// What was run, in order of worth.
    pub parts: Vec<PartReport>,
}

/// One part in the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReport {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What it found, in the order in which it did.
    pub findings: Vec<Finding>,
}

/// The form that this version writes.
pub const FORM: u32 = 1;

impl PartReport {
    /// Whether it was begun.
    #[must_use]
    pub fn was_tried(&self) -> bool {
        self.outcome.ending != Ending::Missing || !self.findings.is_empty()
    }

    /// Why not all of it was tried, where it was begun. A part that the next run goes on with is none of these.
    #[must_use]
    pub fn cut_short(&self) -> Option<String> {
        let Outcome { ending, why, .. } = &self.outcome;
        let words = match (ending, why) {
            (Ending::Done | Ending::Cut, _) => return None,
            (Ending::Missing, _) => "the run was cut off in it".to_owned(),
            (_, Some(why)) => why.clone(),
            (ending, None) => ending.words().to_owned(),
        };
        self.was_tried().then_some(words)
    }
}

impl Report {
    /// Of what a folder has, without what tells whose it is.
    #[must_use]
    pub fn of(results: &Folder, device: Option<&str>) -> Self {
        let own = std::env::current_exe().unwrap_or_default();
        let temporary = std::env::temp_dir();
        let home = own.parent().unwrap_or(&own);
        let scrub = Scrub::of_this_machine(&[results.path(), home, &temporary]);
        let parts = PARTS.iter().map(|part| PartReport {
            name: part.name.to_owned(),
            outcome: {
                let outcome = results.outcome(part.name);
                Outcome {
                    why: outcome.why.as_deref().map(|why| one_line(&scrub.text(why))),
                    ..outcome
                }
            },
            findings: results
                .findings(part.name)
                .into_iter()
                .map(|finding| Finding {
                    says: one_line(&scrub.text(&finding.says)),
                    details: finding.details.map(|details| scrub.value(details)),
                    ..finding
                })
                .collect(),
        });
        Self {
            form: FORM,
            divvy: env!("CARGO_PKG_VERSION").to_owned(),
            machine: machine(&scrub, Machine::here(device)),
            parts: parts.collect(),
        }
    }

    /// Whether every promise that was tried holds, and every part came to its end.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.parts.iter().filter(|part| part.was_tried()).all(|part| {
            let fails = |finding: &Finding| finding.verdict == Verdict::Fails;
            part.cut_short().is_none() && !part.findings.iter().any(fails)
        })
    }

    /// The page, in Markdown: what fails first, then part by part.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = String::new();
        let _text = self.write_page(&mut page);
        page
    }

    fn write_page(&self, page: &mut String) -> std::fmt::Result {
        let machine = &self.machine;
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".into());
        writeln!(page, "# Divvy {} on {}\n", self.divvy, known(&machine.gpu))?;
        writeln!(
            page,
            "Driver {}, {}, {}, {} processors; written {}.\n",
            if machine.emulated {
                "emulated".into()
            } else {
                known(&machine.driver)
            },
            machine.kernel,
            known(&machine.libc),
            machine.processors,
            date(machine.unix_seconds)
        )?;
        let failing: Vec<&Finding> = self
            .parts
            .iter()
            .flat_map(|part| &part.findings)
            .filter(|finding| finding.verdict == Verdict::Fails)
            .collect();
        let cut: Vec<String> = self
            .parts
            .iter()
            .filter_map(|part| {
                Some(format!(
                    "`{}` did not come to its end: {}",
                    part.name,
                    part.cut_short()?
                ))
            })
            .collect();
        match failing.len() + cut.len() {
            0 => writeln!(page, "No promise that was tried fails.\n")?,
            number => {
                writeln!(page, "## What fails: {number}\n")?;
                for line in cut.into_iter().chain(failing.into_iter().map(sentence)) {
                    writeln!(page, "- {line}")?;
                }
                writeln!(page)?;
            }
        }
        let rest: Vec<&str> = self
            .parts
            .iter()
            .filter(|part| matches!(part.outcome.ending, Ending::Cut | Ending::Missing))
            .map(|part| part.name.as_str())
            .collect();
        if !rest.is_empty() {
            writeln!(page, "The next run goes on with: {}.\n", rest.join(", "))?;
        }
        for part in &self.parts {
            let Outcome { ending, seconds, why } = &part.outcome;
            let words = match ending {
                Ending::Done => format!("done in {seconds:.0} s"),
                ending => ending.words().to_owned(),
            };
            let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            writeln!(page, "## {} ({words}{why})\n", part.name)?;
            for finding in &part.findings {
                writeln!(page, "- {}: {}", finding.verdict.word(), sentence(finding))?;
            }
            if !part.findings.is_empty() {
                writeln!(page)?;
            }
        }
        Ok(())
    }
}

/// Whatever a program said: it writes no line of its own into the page.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// What the kernel, the driver and the C library call themselves is others' text. An emulated device's name is the user's word.
fn machine(scrub: &Scrub, machine: Machine) -> Machine {
    let clean = |text: Option<String>| text.map(|text| scrub.foreign(&text));
    Machine {
        gpu: match machine.emulated {
            true => machine.gpu,
            false => clean(machine.gpu),
        },
        driver: clean(machine.driver),
        kernel: scrub.foreign(&machine.kernel),
        libc: clean(machine.libc),
        ..machine
    }
}

/// Writes both, in the place of the former ones.
///
/// # Errors
/// The system's reason.
pub fn write(results: &Folder, device: Option<&str>) -> io::Result<()> {
    let report = Report::of(results, device);
    results.replace("report.json", &serde_json::to_vec_pretty(&report)?)?;
    results.replace("report.md", report.page().as_bytes())
}

/// What a part found, in a line.
#[must_use]
pub fn line(results: &Folder, part: &str) -> String {
    let findings = results.findings(part);
    let count = |verdict| {
        findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    let outcome = results.outcome(part);
    format!(
        "{} in {:.0} s: {} fail, {} hold, {} facts, {} skipped",
        outcome.ending.words(),
        outcome.seconds,
        count(Verdict::Fails),
        count(Verdict::Holds),
        count(Verdict::Fact),
        count(Verdict::Skipped)
    )
}

fn sentence(finding: &Finding) -> String {
    let figure = finding
        .figure
        .map(|figure| format!(" ({})", figure_words(figure)));
    format!(
        "`{}` {}{}",
        finding.check,
        finding.says,
        figure.unwrap_or_default()
    )
}

fn figure_words(Figure { value, unit }: Figure) -> String {
    match unit {
        Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
        Unit::Nanoseconds => format!("{value:.0} ns"),
        Unit::Ratio => format!("{value:.3} times"),
        Unit::Percent => format!("{value:.2} %"),
        Unit::Count => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_comes_first_and_cut_parts_are_named() {
        let base = tempfile::tempdir().expect("a folder");
        let results = Folder::open(base.path()).expect("a folder");
        for part in ["facts", "memory"] {
            results.begin(part).expect("begun");
        }
        let mut sink = results.sink("memory").expect("a sink");
        let says = format!("a pool grew past the limit in {}", base.path().display());
        sink.put(&Finding::promise("memory.path.pool", false, says).bytes(5 << 30))
            .expect("written");
        sink.put(&Finding::promise("memory.path.plain", true, "stays inside"))
            .expect("written");
        let outcome = |ending| Outcome {
            ending,
            seconds: 3.0,
            why: Some("signal 11 ended it".into()),
        };
        results.end("memory", &outcome(Ending::Crashed)).expect("ended");
        write(&results, Some("emulated:h100")).expect("written");
        let page = std::fs::read_to_string(results.path().join("report.md")).expect("a page");
        let fails = page.find("## What fails: 2").expect("first");
        assert!(
            fails < page.find("## facts (not run)").expect("cut off"),
            "{page}"
        );
        assert!(page.contains("## memory (CRASHED: signal 11 ended it)"), "{page}");
        assert!(
            page.contains("5120.0 MiB") && page.contains("in <folder>"),
            "{page}"
        );
        let text = std::fs::read(results.path().join("report.json")).expect("a document");
        let report: Report = serde_json::from_slice(&text).expect("our form");
        assert!(!report.holds());
        assert_eq!(report.parts.len(), PARTS.len());
        assert!(line(&results, "memory").starts_with("CRASHED in 3 s: 1 fail, 1 hold"));
    }
}
