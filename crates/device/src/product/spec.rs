//! `DIVVY_EMULATED`: which devices this machine pretends to have.
//!
//! Grammar: `item (',' item)*`, item = `['emulated:'] profile ['*' count] (',' option)*`, option = `'context=' bytes`.
//! or `'timing=' timing`, `'fast-forward'`, `'timeslice=' slice`, `'kernels=' ('interpreted' | 'compiled')`.
//! Options are those of the devices before them. Nothing set means one H100.

use super::profile::{POCL, PROFILES, Profile};
use crate::engine::schedule::{DEFAULT_SLICE, LONG_SLICE, SHORT_SLICE};
use divvy_model::Bytes;
use std::fmt;
use std::ops::Range;

/// What is emulated when nothing is named.
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
    /// Not an option of a device, or one before any device.
    UnknownOption(String),
    /// An option's value is not an amount of memory, or more than the device has.
    BadAmount(String),
    /// Not a way for time to pass.
    BadTiming(String),
    /// Not the length of a slice.
    BadTimeslice(String),
    /// Not a way to run kernels.
    BadKernels(String),
    /// PoCL more than once, or with an option.
    Pocl,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::UnknownProfile(name) => {
                let known: Vec<&str> = PROFILES.iter().map(|profile| profile.key).collect();
                write!(
                    f,
                    "no emulated device is called {name:?}: choose one of {}, or {} for OpenCL programs",
                    known.join(", "),
                    POCL.key
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
            SpecError::UnknownOption(option) => {
                write!(
                    f,
                    "{option:?} is no option of a device: write for example h100,context=304MiB"
                )
            }
            SpecError::BadAmount(value) => {
                write!(
                    f,
                    "{value:?} is not an amount of memory that a context can take: write for example 304MiB, or 0"
                )
            }
            SpecError::BadTiming(value) => {
                write!(
                    f,
                    "{value:?} is no timing: write free, model, model/100 for a device a hundred times slower, or model,fast-forward"
                )
            }
            SpecError::BadTimeslice(value) => {
                write!(
                    f,
                    "{value:?} is no time slice: write default, short, medium, long, or milliseconds from 0.05 to 1000"
                )
            }
            SpecError::BadKernels(value) => {
                write!(
                    f,
                    "{value:?} is no way to run kernels: write interpreted or compiled"
                )
            }
            SpecError::Pocl => write!(
                f,
                "pocl is this machine's processors: they are one device, and have no options"
            ),
            SpecError::Empty => write!(
                f,
                "an emulated device has no name: write for example h100 or l4*2"
            ),
        }
    }
}

impl std::error::Error for SpecError {}

/// One device of a specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub profile: &'static Profile,
    /// Device memory that each context takes while it lives, in bytes.
    pub context_bytes: u64,
    /// How time passes for its kernels.
    pub timing: Timing,
    /// How long a process keeps the engine while others want it, in nanoseconds; None: as the device has it.
    pub timeslice_ns: Option<u64>,
    /// Kernels are compiled to machine code where that is possible.
    pub compile: bool,
}

/// How time passes for kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timing {
    /// A kernel lasts as long as the CPU took, and those of several processes run at once.
    #[default]
    Free,
    /// A kernel lasts as long as a model of the product says, and one process at a time has the engine.
    Model {
        /// How much slower than the product the device computes; 1 for as fast.
        dilation: u32,
        /// The device is never waited for: its clock leaps.
        fast_forward: bool,
    },
}

impl Timing {
    /// How much slower than the product the device computes.
    pub fn dilation(self) -> u64 {
        match self {
            Timing::Free => 1,
            Timing::Model { dilation, .. } => u64::from(dilation),
        }
    }

    /// The clock leaps over times that a process would wait for.
    pub fn leaps(self) -> bool {
        matches!(
            self,
            Timing::Model {
                fast_forward: true,
                ..
            }
        )
    }
}

/// The devices, in order of their index.
///
/// # Errors
/// [`SpecError`]: the text describes no devices; the variant says where.
pub fn parse(spec: &str) -> Result<Vec<Item>, SpecError> {
    let mut devices: Vec<Item> = Vec::new();
    let mut last: Range<usize> = 0..0;
    for item in spec.split(',') {
        let item = item.trim();
        if let Some(option) = option(item) {
            if last.is_empty() {
                return Err(SpecError::UnknownOption(item.to_owned()));
            }
            for device in &mut devices[last.clone()] {
                device.set(option, item)?;
            }
            continue;
        }
        let item = item.strip_prefix("emulated:").unwrap_or(item);
        let (name, count) = match item.split_once('*') {
            Some((name, count)) => (name.trim(), parse_count(count.trim())?),
            None => (item, 1),
        };
        if name.is_empty() {
            return Err(SpecError::Empty);
        }
        let profile = Profile::by_key(name).ok_or_else(|| SpecError::UnknownProfile(name.to_owned()))?;
        let is_another = devices.iter().any(|device| device.profile.is_opencl_only());
        if profile.is_opencl_only() && (is_another || count > 1) {
            return Err(SpecError::Pocl);
        }
        last = devices.len()..devices.len() + count;
        let item = Item {
            profile,
            context_bytes: 0,
            timing: Timing::Free,
            timeslice_ns: None,
            compile: false,
        };
        devices.extend(std::iter::repeat_n(item, count));
    }
    if devices.len() > MAX_DEVICES {
        return Err(SpecError::TooMany(devices.len()));
    }
    Ok(devices)
}

/// An option's name and value, or None if this is a device.
fn option(item: &str) -> Option<(&str, &str)> {
    match item.split_once('=') {
        Some((name, value)) => Some((name.trim(), value.trim())),
        None if item == FAST_FORWARD => Some((item, "")),
        None => None,
    }
}

const FAST_FORWARD: &str = "fast-forward";

impl Item {
    fn set(&mut self, (name, value): (&str, &str), item: &str) -> Result<(), SpecError> {
        if self.profile.is_opencl_only() {
            return Err(SpecError::Pocl);
        }
        match (name, &mut self.timing) {
            ("context", _) => self.context_bytes = parse_context(value, self.profile)?,
            ("timing", timing) => *timing = parse_timing(value)?,
            ("timeslice", _) => self.timeslice_ns = Some(parse_timeslice(value)?),
            ("kernels", _) => {
                self.compile = match value {
                    "interpreted" => false,
                    "compiled" => true,
                    _ => return Err(SpecError::BadKernels(value.to_owned())),
                }
            }
            (FAST_FORWARD, Timing::Model { fast_forward, .. }) if value.is_empty() => *fast_forward = true,
            (FAST_FORWARD, Timing::Free) => return Err(SpecError::BadTiming(item.to_owned())),
            _ => return Err(SpecError::UnknownOption(item.to_owned())),
        }
        Ok(())
    }
}

fn parse_timing(text: &str) -> Result<Timing, SpecError> {
    let bad = || SpecError::BadTiming(text.to_owned());
    let (name, dilation) = match text.split_once('/') {
        Some((name, dilation)) => (name.trim(), dilation.trim().parse().map_err(|_| bad())?),
        None => (text, 1),
    };
    match name {
        "free" if !text.contains('/') => Ok(Timing::Free),
        "model" if (1..=MAX_DILATION).contains(&dilation) => Ok(Timing::Model {
            dilation,
            fast_forward: false,
        }),
        _ => Err(bad()),
    }
}

/// A device slower than this is none.
const MAX_DILATION: u32 = 1_000_000;

/// The driver's words, with the lengths that it is known to give them (`nvidia-smi compute-policy --set-timeslice`).
fn parse_timeslice(text: &str) -> Result<u64, SpecError> {
    match text {
        "default" | "medium" => Ok(DEFAULT_SLICE),
        "short" => Ok(SHORT_SLICE),
        "long" => Ok(LONG_SLICE),
        _ => {
            let ms = text.strip_suffix("ms").unwrap_or(text).trim().parse::<f64>().ok();
            ms.filter(|ms| (0.05..=1000.0).contains(ms))
                .map(|ms| (ms * 1e6) as u64)
                .ok_or_else(|| SpecError::BadTimeslice(text.to_owned()))
        }
    }
}

fn parse_context(text: &str, profile: &Profile) -> Result<u64, SpecError> {
    match text.parse::<Bytes>() {
        Ok(Bytes(bytes)) if bytes <= profile.memory_bytes => Ok(bytes),
        _ if text == "0" => Ok(0),
        _ => Err(SpecError::BadAmount(text.to_owned())),
    }
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
        parse(spec).unwrap().iter().map(|item| item.profile.key).collect()
    }

    #[test]
    fn counts_lists_and_the_selector_prefix() {
        assert_eq!(keys("h100"), ["h100"]);
        assert_eq!(keys("emulated:A100-40GB*2"), ["a100-40gb", "a100-40gb"]);
        assert_eq!(keys("h100*2, l4"), ["h100", "h100", "l4"]);
    }

    #[test]
    fn options_are_those_of_the_devices_before_them() {
        let contexts = |spec: &str| -> Vec<u64> {
            parse(spec)
                .unwrap()
                .iter()
                .map(|item| item.context_bytes)
                .collect()
        };
        assert_eq!(contexts("h100,context=304MiB"), [304 << 20]);
        assert_eq!(
            contexts("t4, h100*2, context = 1GiB ,l4"),
            [0, 1 << 30, 1 << 30, 0]
        );
        assert_eq!(contexts("h100,context=0"), [0]);
        for option in ["context=1MiB", "h100,speed=2", "h100,=", "context=1MiB,h100"] {
            assert!(
                matches!(parse(option), Err(SpecError::UnknownOption(_))),
                "{option}"
            );
        }
        for amount in ["304", "-1MiB", "", "99999999999999999999GiB", "81GiB", "1 banana"] {
            let spec = format!("h100,context={amount}");
            assert_eq!(
                parse(&spec),
                Err(SpecError::BadAmount(amount.to_owned())),
                "{spec}"
            );
        }
    }

    #[test]
    fn time_passes_as_the_options_say() {
        let timing =
            |spec: &str| parse(spec).map(|items| items.iter().map(|item| item.timing).collect::<Vec<_>>());
        let model = |dilation, fast_forward| Timing::Model {
            dilation,
            fast_forward,
        };
        assert_eq!(timing("h100,l4"), Ok(vec![Timing::Free; 2]));
        assert_eq!(
            timing("h100, timing=model/100 ,l4,timing=model,fast-forward,t4,timing=free"),
            Ok(vec![model(100, false), model(1, true), Timing::Free])
        );
        for bad in [
            "model/0",
            "model/",
            "models",
            "free/2",
            "model/9999999999",
            "",
            "model fast-forward",
        ] {
            let refused = timing(&format!("h100,timing={bad}"));
            assert_eq!(refused, Err(SpecError::BadTiming(bad.to_owned())));
        }
        assert!(
            timing("h100,fast-forward").is_err(),
            "of free timing nothing is forwarded"
        );
        assert!(timing("fast-forward,h100").is_err());
        let slice = |text: &str| parse(&format!("h100,timeslice={text}")).map(|items| items[0].timeslice_ns);
        for (text, ns) in [
            ("short", 1_000_000),
            ("default", 2_000_000),
            ("medium", 2_000_000),
            ("long", 30_000_000),
        ] {
            assert_eq!(slice(text), Ok(Some(ns)));
        }
        assert_eq!(
            [slice("5ms"), slice("0.5")],
            [Ok(Some(5_000_000)), Ok(Some(500_000))]
        );
        for bad in ["0", "-1ms", "2000ms", "NaN", "soon", ""] {
            assert_eq!(slice(bad), Err(SpecError::BadTimeslice(bad.to_owned())));
        }
    }

    #[test]
    fn kernels_are_interpreted_unless_the_option_says_otherwise() {
        let compile =
            |spec: &str| parse(spec).map(|items| items.iter().map(|item| item.compile).collect::<Vec<_>>());
        assert_eq!(
            compile("h100,l4,kernels=compiled,t4,kernels=interpreted"),
            Ok(vec![false, true, false])
        );
        for bad in ["", "fast", "Compiled"] {
            let refused = compile(&format!("h100,kernels={bad}"));
            assert_eq!(refused, Err(SpecError::BadKernels(bad.to_owned())));
        }
    }

    #[test]
    fn pocl_is_one_device_without_options() {
        assert_eq!(keys("PoCL"), ["pocl"]);
        assert_eq!(keys("h100,kernels=compiled,emulated:pocl"), ["h100", "pocl"]);
        for bad in ["pocl*2", "pocl,h100,pocl", "pocl,context=0", "pocl,timing=model"] {
            assert_eq!(parse(bad), Err(SpecError::Pocl), "{bad}");
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        let refusal = |spec: &str| parse(spec).unwrap_err().to_string();
        assert!(refusal("b9000").contains(
            "h100, h200, b200, a100-40gb, a100-80gb, a30, a10, a40, l4, l40s, rtx4090, t4, v100, or pocl"
        ));
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
