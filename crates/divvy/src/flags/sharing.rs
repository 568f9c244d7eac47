//! The flags that say how a slice shares its device.

use divvy_model::{Fault, Mode, ModeTerms, TimeSlice};

use crate::config::Config;
use crate::flags::{or_setting, word};

/// See the module.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Flags {
    /// How the device is shared: lease (in turn, in any shares; the usual), timeslice (the hardware's equal turns), mps
    /// (at the same time), mig (an instance each). A device is shared in one way at a time; `divvy explain sharing`
    /// compares them
    #[arg(long, value_name = "MODE", value_parser = word::<Mode>)]
    pub share: Option<Mode>,
    /// With --share timeslice: into how many equal parts; who comes first decides [default: as the agent is configured,
    /// 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub replicas: Option<u32>,
    /// With --share timeslice: how long a turn is: default, short, medium or long; who comes first decides
    #[arg(long, value_name = "LENGTH", value_parser = word::<TimeSlice>)]
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
