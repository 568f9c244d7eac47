//! `divvy explain sharing`: the ways of sharing a device, side by side.

use divvy_model::Mode;

use crate::table::Table;

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
    text.push_str(LATENCY);
    text
}

/// What a latency-critical program sees beside long launches.
const LATENCY: &str = "
A latency-critical program (--class latency) goes before the others of a leased device. A request still waits for what a
neighbour has on the device when it comes: one launch, where launches last 32 ms or more. Beside launches of 300 ms it may
wait for 300 ms, because no device ends a launch early on request. Where the hardware runs programs in turns, it runs the
request beside the rest of that launch: Divvy gives the lease at once. A launch that lasts much longer than expected loses
its lease, and from then on the hardware's turns decide between the two.
";

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
