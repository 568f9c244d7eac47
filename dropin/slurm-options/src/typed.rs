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
        format!("divvy: --{name}={text}: {error}; {}", error.hint())
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
