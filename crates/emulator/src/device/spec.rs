//! `DIVVY_EMULATED`: which devices this machine pretends to have.
//!
//! Grammar: `item (',' item)*`, item = `['emulated:'] profile ['*' count]`. Nothing set means one H100.

use super::profile::{PROFILES, Profile};
use std::fmt;

/// What is emulated when nobody says.
pub const DEFAULT_SPEC: &str = "h100";
/// More devices than a host has is a typing error.
pub const MAX_DEVICES: usize = 16;

/// Why a device specification was refused; Display is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecError {
    /// No product of this name.
    UnknownProfile(String),
    /// What follows `*` is not a count from 1 to [`MAX_DEVICES`].
    BadCount(String),
    /// More than [`MAX_DEVICES`] in all.
    TooMany(usize),
    /// Nothing between two commas, or nothing at all.
    Empty,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::UnknownProfile(name) => {
                let known: Vec<&str> = PROFILES.iter().map(|profile| profile.key).collect();
                write!(
                    f,
                    "no emulated device is called {name:?}: choose one of {}",
                    known.join(", ")
                )
            }
            SpecError::BadCount(count) => {
                write!(
                    f,
                    "{count:?} is not a count of devices: write 1 to {MAX_DEVICES}, as in h100*2"
                )
            }
            SpecError::TooMany(count) => {
                write!(f, "{count} emulated devices: at most {MAX_DEVICES} are allowed")
            }
            SpecError::Empty => write!(
                f,
                "an emulated device has no name: write for example h100 or l4*2"
            ),
        }
    }
}

impl std::error::Error for SpecError {}

/// The profiles of the devices, in order of their index.
pub fn parse(spec: &str) -> Result<Vec<&'static Profile>, SpecError> {
    let mut devices = Vec::new();
    for item in spec.split(',') {
        let item = item.trim();
        let item = item.strip_prefix("emulated:").unwrap_or(item);
        let (name, count) = match item.split_once('*') {
            Some((name, count)) => (name.trim(), parse_count(count.trim())?),
            None => (item, 1),
        };
        if name.is_empty() {
            return Err(SpecError::Empty);
        }
        let profile = Profile::by_key(name).ok_or_else(|| SpecError::UnknownProfile(name.to_owned()))?;
        devices.extend(std::iter::repeat_n(profile, count));
    }
    if devices.len() > MAX_DEVICES {
        return Err(SpecError::TooMany(devices.len()));
    }
    Ok(devices)
}

fn parse_count(text: &str) -> Result<usize, SpecError> {
    match text.parse::<usize>() {
        Ok(count) if (1..=MAX_DEVICES).contains(&count) => Ok(count),
        _ => Err(SpecError::BadCount(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(spec: &str) -> Vec<&'static str> {
        parse(spec).unwrap().iter().map(|profile| profile.key).collect()
    }

    #[test]
    fn counts_lists_and_the_selector_prefix() {
        assert_eq!(keys("h100"), ["h100"]);
        assert_eq!(keys("emulated:A100-40GB*2"), ["a100-40gb", "a100-40gb"]);
        assert_eq!(keys("h100*2, l4"), ["h100", "h100", "l4"]);
    }

    #[test]
    fn refusals_say_what_to_write() {
        let refusal = |spec: &str| parse(spec).unwrap_err().to_string();
        assert!(refusal("b9000").contains("h100, h200, a100-40gb, a100-80gb, l4, t4"));
        assert_eq!(parse("h100*0"), Err(SpecError::BadCount("0".into())));
        assert_eq!(
            parse("h100*99999999999999999999"),
            Err(SpecError::BadCount("99999999999999999999".into()))
        );
        assert_eq!(parse("h100*9,l4*9"), Err(SpecError::TooMany(18)));
        assert_eq!(parse(""), Err(SpecError::Empty));
        assert_eq!(parse("h100,,l4"), Err(SpecError::Empty));
    }
}
