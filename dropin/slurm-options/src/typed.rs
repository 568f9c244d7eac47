//! The options, and what was typed behind them.

use std::ffi::CStr;
use std::sync::Mutex;

use divvy_model::{Compute, MemoryAmount, QuantityError, spank};

/// An option.
pub struct Opt {
    /// Its name, without the dashes.
    pub name: &'static CStr,
    /// A word for its value.
    pub value: &'static CStr,
    /// A line of the help.
    pub usage: &'static CStr,
    /// The variable that tells a step's task prolog what the step asked for.
    pub variable: &'static CStr,
    check: fn(&str) -> Result<(), QuantityError>,
}

/// Memory and time.
pub static OPTIONS: [Opt; 2] = [
    Opt {
        name: spank::MEMORY,
        value: c"size",
        usage: c"memory of each of the job's GPUs, 4GiB for instance: at most what its shards are",
        variable: spank::STEP_MEMORY,
        check: |text| text.parse::<MemoryAmount>().map(drop),
    },
    Opt {
        name: spank::COMPUTE,
        value: c"percent",
        usage: c"share of each GPU's time, 30% for instance: at most what its shards are",
        variable: spank::STEP_COMPUTE,
        check: |text| text.parse::<Compute>().map(drop),
    },
];

/// What was typed, by option.
static TYPED: Mutex<[Option<String>; 2]> = Mutex::new([None, None]);

/// Keeps the value of an option.
///
/// # Errors
/// A sentence for the user.
pub fn keep(option: usize, text: &str) -> Result<(), String> {
    let known = OPTIONS.get(option).ok_or("an option that is not Divvy's")?;
    (known.check)(text).map_err(|error| {
        let name = known.name.to_string_lossy();
        // In slurmstepd it goes to a log of root's.
        spank::line(&format!("divvy: --{name}={text}: {error}; {}", error.hint()))
    })?;
    // A poisoned lock holds whole values: nothing here stops halfway.
    let mut typed = TYPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(place) = typed.get_mut(option) {
        *place = Some(text.to_owned());
    }
    Ok(())
}

/// What was typed behind an option.
pub fn kept(option: usize) -> Option<String> {
    let typed = TYPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    typed.get(option).cloned().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_amount_is_refused_in_one_line_and_changes_nothing() {
        keep(0, "4GiB").expect("an amount");
        for forged in [
            "5GiB\n[2026-01-01T00:00:00] error: root was here",
            "5\u{1b}[2J",
            &"9".repeat(1 << 20),
        ] {
            let sentence = keep(0, forged).expect_err("no amount");
            assert!(sentence.starts_with("divvy: --divvy-memory="), "{sentence}");
            assert!(
                !sentence.contains(char::is_control) && sentence.len() < 400,
                "{sentence}"
            );
        }
        assert_eq!(kept(0).as_deref(), Some("4GiB"));
        keep(1, "30").expect_err("no share");
        assert_eq!((kept(1), kept(2)), (None, None));
        keep(usize::MAX, "1GiB").expect_err("no option");
    }
}
