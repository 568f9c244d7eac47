//! What several verbs read from the command line in the same way, and from the settings where a flag is not given.

pub mod compute;
pub mod sharing;
pub mod terms;

use std::str::FromStr;
use std::time::Duration;

use divvy_model::{Code, Fault, Policy, Selector};

use crate::config::{Config, IntoFault, a_second_at_least, parse_duration};

/// The devices: the flag's, else the configuration's, of which there may be several, as 0,1.
pub fn devices_or_setting(flag: &[Selector], config: &Config) -> Result<Vec<Selector>, Fault> {
    if !flag.is_empty() {
        return Ok(flag.to_vec());
    }
    Ok(config
        .get::<Selectors>("device")?
        .map_or_else(Vec::new, |selectors| selectors.0))
}

/// Selectors with commas between them.
struct Selectors(Vec<Selector>);

impl FromStr for Selectors {
    type Err = <Selector as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(',')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// How long an allocation waits, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct OnOom(pub u64);

/// A length of time in whole seconds, one at least.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u64);

/// A length of time for a slice. Of a part of a second, which the agent does not count, it takes a whole one.
pub fn seconds(text: &str) -> Result<Seconds, Fault> {
    let time = a_second_at_least(text).map_err(usage)?;
    Ok(Seconds(
        u64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(u64::MAX),
    ))
}

/// What an allocation does that does not fit.
pub fn on_oom(text: &str) -> Result<OnOom, Fault> {
    /// What `wait` alone means.
    const WAIT: Duration = Duration::from_secs(30);
    let nanoseconds = |limit: Duration| OnOom(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    match (text, text.strip_prefix("wait=")) {
        ("fail", _) => Ok(OnOom(0)),
        ("wait", _) => Ok(nanoseconds(WAIT)),
        (_, Some(limit)) => parse_duration(limit).map(nanoseconds).map_err(usage),
        _ => Err(Fault::new(Code::Usage, format!("`{text}` is nothing to do"))
            .hint("choose fail, wait or wait=30s")),
    }
}

/// How many times the memory may be allocated: `2x` or `1.5x`, in parts per 100.
pub fn times(text: &str) -> Result<u32, Fault> {
    let number = text
        .strip_suffix(['x', 'X'])
        .and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(number) if (1.0..=100.0).contains(&number) => Ok((number * 100.0).round() as u32),
        _ => Err(Fault::new(Code::Usage, format!("`{text}` is no number of times"))
            .hint("write 2x or 1.5x: from 1x to 100x")),
    }
}

/// A device had no space for a slice whose memory was not given: the number in the refusal is one that was not typed.
pub fn unsized_request(mut fault: Fault) -> Fault {
    if fault.code == Code::DeviceFull {
        fault.causes.insert(
            0,
            "no --memory was given, so all of the device was asked for".into(),
        );
        let free = fault
            .hint
            .take()
            .map_or_else(String::new, |hint| format!(": {hint}"));
        fault.hint = Some(format!("say how much, as `--memory 4GiB`{free}"));
    }
    fault
}

/// The policy: the flag's, else the configuration's, else strict.
pub fn policy_or_setting(flag: Option<Policy>, config: &Config) -> Result<Policy, Fault> {
    match flag {
        Some(policy) => Ok(policy),
        None => Ok(config.get::<Policy>("policy")?.unwrap_or_default()),
    }
}

/// A flag's value, else the configuration's.
pub fn or_setting<T>(flag: Option<T>, config: &Config, key: &str) -> Result<Option<T>, Fault>
where
    T: FromStr,
    T::Err: IntoFault,
{
    match flag {
        Some(value) => Ok(Some(value)),
        None => config.get(key),
    }
}

/// A value's parser for clap, whose failure keeps its code and hint.
pub fn parse<T>(text: &str) -> Result<T, Fault>
where
    T: FromStr,
    T::Err: IntoFault,
{
    text.parse().map_err(IntoFault::into_fault)
}

/// The parser of a word, whose failure is one of the command line.
pub fn word<T>(text: &str) -> Result<T, Fault>
where
    T: FromStr,
    T::Err: IntoFault,
{
    parse(text).map_err(usage)
}

/// The same fault, as one of the command line.
pub fn usage(fault: Fault) -> Fault {
    Fault {
        code: Code::Usage,
        ..fault
    }
}
