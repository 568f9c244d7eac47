//! The flags of a new slice's limits beside its memory: the same for `run`, `slice create` and `container cdi slice`.

use divvy_model::{Fault, Isolation, ModeTerms, OnOveruse, Policy, Selector, SliceRequest, SliceTerms};

use crate::config::Config;
use crate::flags::{OnOom, compute, devices_or_setting, on_oom, parse, policy_or_setting, times, word};

/// See the module.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Flags {
    #[command(flatten)]
    pub compute: compute::Flags,
    /// Device: index, UUID or unique prefix, PCI address, emulated:h100, tcp://HOST:PORT/0 [default: one with space]. Several, as 0,1 or
    /// one --device each, make one slice with that memory of each of them: all or none
    #[arg(long, value_name = "SEL", value_delimiter = ',', value_parser = parse::<Selector>)]
    pub device: Vec<Selector>,
    /// Where a limit cannot be enforced: strict refuses, best-effort runs and counts the bypass
    #[arg(long, value_name = "POLICY", value_parser = word::<Policy>)]
    pub policy: Option<Policy>,
    /// How strongly programs are kept inside: env, cooperative, supervised, enforced, hardware, vm. cooperative stops
    /// mistakes, not malice: the limits live in the program's own process. supervised ends or freezes what goes past
    /// them. enforced gives programs no device, only a worker that makes their calls [default: supervised for containers
    /// and on the system's agent, else cooperative]
    #[arg(long, value_name = "LEVEL", value_parser = word::<Isolation>)]
    pub isolation: Option<Isolation>,
    /// In a supervised slice, when a process takes more than the slice has: end it (for time: freeze the slice until
    /// that is paid back), freeze the slice for both, or report [default: end]
    #[arg(long, value_name = "WHAT", value_parser = word::<OnOveruse>)]
    pub on_overuse: Option<OnOveruse>,
    /// When an allocation does not fit: fail at once, or wait for space in the slice, as wait=30s [default: fail]
    #[arg(long, value_name = "WHAT", value_parser = on_oom)]
    pub on_oom: Option<OnOom>,
    /// Let programs allocate beyond the slice's memory, twice as much or so many times, in managed memory that the host
    /// backs [default: 2x where no number is given]
    #[arg(long, value_name = "TIMES", num_args = 0..=1, require_equals = true, default_missing_value = "2x", value_parser = times)]
    pub oversubscribe: Option<u32>,
}

impl Flags {
    /// The request for a slice without name and memory: the flags' terms, else the configuration's.
    pub fn request(&self, config: &Config, sharing: ModeTerms) -> Result<SliceRequest, Fault> {
        let mut request = SliceRequest {
            oversubscribe_percent: self.oversubscribe.unwrap_or(100),
            isolation_unasked: self.isolation.is_none(),
            terms: SliceTerms {
                isolation: self.isolation.unwrap_or_default(),
                on_overuse: self.on_overuse.unwrap_or_default(),
                compute: self.compute.terms(config, sharing.mode)?,
                sharing,
                policy: policy_or_setting(self.policy, config)?,
                on_oom_wait_ns: self.on_oom.map_or(0, |what| what.0),
                ..SliceTerms::default()
            },
            ..SliceRequest::default()
        };
        request.select(devices_or_setting(&self.device, config)?);
        Ok(request)
    }
}
