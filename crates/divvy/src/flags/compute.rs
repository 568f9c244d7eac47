//! The flags that say what a slice is promised of compute: the same for `run`, `slice create` and `resize`.

use divvy_model::{Cap, Class, Compute, ComputeTerms, Fault, Mode, Weight};

use crate::config::Config;
use crate::flags::{or_setting, parse, word};

/// See the module.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Flags {
    /// Its share of the device's time, as 30%: that much whenever it wants it. Without one it has its part of what
    /// is promised to no slice
    #[arg(long, value_name = "SHARE", value_parser = parse::<Compute>, allow_hyphen_values = true)]
    pub compute: Option<Compute>,
    /// Whether the share is a bound too: soft, the usual, lets it use what no other wants; hard never more than its
    /// share
    #[arg(long, value_name = "CAP", value_parser = word::<Cap>)]
    pub cap: Option<Cap>,
    /// Who goes first: latency, before all best-effort and within its share; best-effort, the usual, in its turn
    #[arg(long, value_name = "CLASS", value_parser = word::<Class>)]
    pub class: Option<Class>,
    /// Without a share: its part of what is promised to no slice, against the others' 100
    #[arg(long, value_name = "N", value_parser = word::<Weight>, conflicts_with = "compute")]
    pub weight: Option<Weight>,
}

impl Flags {
    /// The terms of a new slice: the flags', and the configuration's share where they say none and there are shares of any
    /// size.
    pub fn terms(&self, config: &Config, mode: Mode) -> Result<ComputeTerms, Fault> {
        let share = match (self.weight, mode) {
            (Some(_), _) => None,
            (None, Mode::Timeslice | Mode::Mig) => self.compute,
            (None, Mode::Lease | Mode::Mps) => or_setting(self.compute, config, "compute")?,
        };
        Ok(ComputeTerms {
            share,
            weight: self.weight,
            cap: self.cap.unwrap_or_default(),
            class: self.class.unwrap_or_default(),
        })
    }

    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.compute.is_none() && self.cap.is_none() && self.class.is_none() && self.weight.is_none()
    }
}
