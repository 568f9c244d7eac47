//! `divvy explain isolation`: the isolation levels, side by side.

use divvy_model::Isolation;

use crate::table::Table;

/// `divvy explain isolation`.
#[derive(serde::Serialize)]
pub struct Entry {
    level: Isolation,
    about: &'static str,
    not_protected: &'static str,
    /// Whether this version offers it in `divvy run --isolation`.
    offered: bool,
    example: &'static str,
}

impl Entry {
    /// The level's word.
    pub fn name(&self) -> &'static str {
        self.level.name()
    }
}

/// The levels, the weakest first.
pub fn entries() -> Vec<Entry> {
    let entry = |level: Isolation| {
        let (about, example) = match level {
            Isolation::Env => (
                "variables choose the devices that a program is shown, and nothing is limited",
                "divvy run --isolation env -- ./tool",
            ),
            Isolation::Cooperative => (
                "the limiter in the program's own process keeps its memory and its share; costs nanoseconds a call",
                "divvy run --isolation cooperative --memory 8GiB --compute 30% -- python train.py",
            ),
            Isolation::Supervised => (
                "the limiter as before, and the agent acts on what the device's driver says of the slice's processes. What \
                 is beyond the memory limit for more than a second ends the process that took it. Time that was taken past \
                 the gate is paid back: the slice's processes stand still until it is. It holds for static programs too, \
                 and costs an honest program nothing",
                "divvy run --isolation supervised --memory 8GiB --compute 30% --cap hard -- python train.py",
            ),
            Isolation::Enforced => (
                "the program has no device. A worker, a process of a user of its own, makes its calls within the slice's \
                 limits, so they hold whatever the program does. A call costs a round trip through shared memory, and one \
                 without a result much less. Managed memory lies in the host's memory and does not move. Programs that are \
                 static or have NVIDIA's runtime linked in are not supported: `supervised` serves those. docs/remote-coverage.md \
                 has the calls that are not served. It needs the system's agent",
                "divvy run --isolation enforced --memory 8GiB -- python train.py",
            ),
            Isolation::Hardware => (
                "the device itself is partitioned: MIG, or AMD's partitions",
                "divvy run --share mig --memory 10GiB -- python serve.py",
            ),
            Isolation::Vm => (
                "the device is passed through to a virtual machine, which has it alone; `divvy vm doctor` says what a host lacks \
                 for that, `divvy vm bind` hands a device over",
                "-",
            ),
        };
        Entry {
            level,
            about,
            not_protected: level.not_protected(),
            offered: level <= Isolation::Enforced,
            example,
        }
    };
    Isolation::ALL.into_iter().map(entry).collect()
}

/// The levels as text.
pub fn story(entries: &[Entry]) -> String {
    let mut text = String::from(
        "An isolation level says how strongly a program is kept inside its slice. `divvy doctor` says which ones a device \
         reaches. The system's agent and containers take `supervised` where no level is asked for, and a user's own agent \
         takes `cooperative`.\n",
    );
    for entry in entries {
        text.push_str(&format!(
            "\n{}: {}\n  no protection    {}\n",
            entry.level, entry.about, entry.not_protected
        ));
        if entry.example != "-" {
            text.push_str(&format!("  example          {}\n", entry.example));
        }
    }
    text.push_str(
        "\n`--on-overuse` says what supervision does: `end` (as above), `freeze` (it freezes the slice \
         for its memory too, and ends only what uses the device though it is frozen), `report` (events only). Where the driver samples its figures, as NVIDIA's does for time, the \
         share holds over tens of seconds and not over five.\n\
         docs/which-isolation.md compares the levels with MPS, MIG, vGPU and passthrough.\n",
    );
    text
}

/// What the configuration lets no user go below: a level, and a consequence of overuse.
pub fn minimum(least: [Option<&str>; 2]) -> String {
    let of = |what: &str, key: &str, least: Option<&str>| match least {
        Some(least) => format!("The minimum for {what} is `{least}` here (`{key}`).\n"),
        None => format!("The configuration has no minimum for {what} (`{key}`).\n"),
    };
    let [isolation, on_overuse] = least;
    format!(
        "\n{}{}",
        of("the level", "least_isolation", isolation),
        of("`--on-overuse`", "least_on_overuse", on_overuse)
    )
}

/// The levels as a table.
pub fn table(entries: &[Entry], _wide: bool) -> Table {
    let mut table = Table::new(vec![
        ("LEVEL", false),
        ("OFFERED", false),
        ("NO PROTECTION AGAINST", false),
    ]);
    for entry in entries {
        let offered = if entry.offered { "yes" } else { "no" };
        table.row(vec![
            entry.level.to_string(),
            offered.into(),
            entry.not_protected.into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that compares all ways has each level, with what it does not protect against in the same words.
    #[test]
    fn the_page_says_the_same() {
        let page = include_str!("../../../../../docs/which-isolation.md");
        for entry in entries() {
            let row = format!("| `{}` | {} |", entry.level, entry.not_protected);
            assert!(page.contains(&row), "{row}");
        }
    }
}
