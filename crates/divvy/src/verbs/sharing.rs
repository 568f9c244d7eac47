//! The flags that say how a slice shares its device, and the words for it.

use divvy_model::{Cap, Code, Fault, Mode, ModeTerms, SliceRecord, TimeSlice};

use crate::config::Config;
use crate::table::Table;
use crate::verbs::run::{or_setting, parse};

/// See the module.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Flags {
    /// How the device is shared: lease (in turn, in any shares; the usual), timeslice (the hardware's equal turns), mps
    /// (at the same time), mig (an instance each). A device is shared in one way at a time; `divvy explain sharing`
    /// compares them
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub share: Option<Mode>,
    /// With --share timeslice: into how many equal parts; who comes first decides [default: as the agent is configured,
    /// 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub replicas: Option<u32>,
    /// With --share timeslice: how long a turn is: default, short, medium or long; who comes first decides
    #[arg(long, value_name = "LENGTH", value_parser = time_slice)]
    pub time_slice: Option<TimeSlice>,
}

impl Flags {
    /// How a new slice is to share: the flags' way, else the configuration's.
    pub fn terms(&self, config: &Config) -> Result<ModeTerms, Fault> {
        Ok(ModeTerms {
            mode: or_setting(self.share, config, "share")?.unwrap_or_default(),
            replicas: self.replicas,
            time_slice: self.time_slice,
        })
    }
}

fn mode(text: &str) -> Result<Mode, Fault> {
    parse(text).map_err(usage)
}

fn time_slice(text: &str) -> Result<TimeSlice, Fault> {
    parse(text).map_err(usage)
}

fn usage(fault: Fault) -> Fault {
    Fault {
        code: Code::Usage,
        ..fault
    }
}

/// A slice's part of its device, in a word or two: `30% hard`, `1/4 timeslice`, `30% mps`, `mig`.
pub fn part(slice: &SliceRecord) -> String {
    let mut terms = slice.compute_terms();
    let words = match (slice.share_mode, slice.replicas) {
        (Mode::Lease, _) => return terms.to_string(),
        (Mode::Timeslice, Some(replicas)) => format!("1/{replicas}"),
        (Mode::Mps, _) => {
            if terms.cap == Cap::Hard && slice.mps_partition.is_none() {
                terms.cap = Cap::Soft;
            }
            match terms.is_default() {
                true => String::new(),
                false => terms.to_string(),
            }
        }
        (Mode::Timeslice, None) | (Mode::Mig, _) => String::new(),
    };
    format!("{words} {}", slice.share_mode).trim().to_owned()
}

/// What a mode is said to be in a line of its own; nothing for the usual one.
pub fn in_words(slice: &SliceRecord) -> Option<String> {
    if slice.share_mode == Mode::Lease {
        return None;
    }
    let turns = slice
        .time_slice
        .map_or_else(String::new, |length| format!(", {} turns", length.name()));
    Some(format!(
        "{}{turns}: not protected against {}",
        part(slice),
        slice.share_mode.not_protected()
    ))
}

/// `divvy explain sharing`.
#[derive(serde::Serialize)]
pub struct Entry {
    mode: Mode,
    about: &'static str,
    take_when: &'static str,
    not_protected: &'static str,
    at_the_same_time: bool,
    example: &'static str,
}

impl Entry {
    /// The mode's word.
    pub fn name(&self) -> &'static str {
        self.mode.name()
    }
}

/// The ways, the usual one first.
pub fn entries() -> Vec<Entry> {
    let entry = |mode: Mode| Entry {
        mode,
        about: mode.about(),
        take_when: mode.take_when(),
        not_protected: mode.not_protected(),
        at_the_same_time: matches!(mode, Mode::Mps | Mode::Mig),
        example: match mode {
            Mode::Lease => "divvy run --memory 8GiB --compute 30% -- python train.py",
            Mode::Timeslice => "divvy run --share timeslice --replicas 4 -- python notebook.py",
            Mode::Mps => "divvy run --share mps --memory 8GiB --compute 30% -- ./many-small-kernels",
            Mode::Mig => "divvy run --share mig --memory 10GiB -- python serve.py",
        },
    };
    Mode::ALL.into_iter().map(entry).collect()
}

/// The ways as text.
pub fn story(entries: &[Entry]) -> String {
    let mut text = String::from(
        "A device is shared in one way at a time. In turn, one program has the whole of it for a while; at the same time, \
         each has a part of it.\n",
    );
    for entry in entries {
        let turns = match entry.at_the_same_time {
            true => "at the same time",
            false => "in turn",
        };
        text.push_str(&format!(
            "\n{} ({turns}): {}\n  take it when     {}\n  no protection    {}\n  example          {}\n",
            entry.mode, entry.about, entry.take_when, entry.not_protected, entry.example
        ));
    }
    text
}

/// The ways as a table.
pub fn table(entries: &[Entry], _wide: bool) -> Table {
    let mut table = Table::new(vec![("MODE", false), ("TURNS", false), ("TAKE IT WHEN", false)]);
    for entry in entries {
        let turns = if entry.at_the_same_time {
            "at once"
        } else {
            "in turn"
        };
        table.row(vec![entry.mode.to_string(), turns.into(), entry.take_when.into()]);
    }
    table
}
