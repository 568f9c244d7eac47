//! The parts of the kit, in order of worth: what is found out first is what a short loan of a card is for.

use std::time::Duration;

use crate::finding::Failure;
use crate::kit::Kit;
use crate::parts;

/// One part.
#[derive(Clone, Copy)]
pub struct Part {
    /// Its name, as `--part` has it.
    pub name: &'static str,
    /// What it finds out, in a line.
    pub about: &'static str,
    /// How long it may take.
    pub limit: Duration,
    /// How long it may take in `divvy selftest`; none where it is not part of that.
    pub short: Option<Duration>,
    /// Whether several programs use the card at once in it.
    pub is_shared: bool,
    /// What it does.
    pub run: fn(&mut Kit) -> Result<(), Failure>,
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// All of them. On a card the first five, which tell most, have ten minutes in sum.
pub const PARTS: &[Part] = &[
    Part {
        name: "facts",
        about: "what the driver and NVML say of the card, and which of their functions we know",
        limit: seconds(30),
        short: Some(seconds(20)),
        is_shared: false,
        run: parts::facts::run,
    },
    Part {
        name: "memory",
        about: "every way of getting memory in a slice, held against what NVML says of the process",
        limit: seconds(90),
        short: Some(seconds(40)),
        is_shared: false,
        run: parts::memory::run,
    },
    Part {
        name: "clients",
        about: "PyTorch, CuPy, JAX, Triton and numba, unmodified: in a slice, and two at once",
        limit: seconds(240),
        short: None,
        is_shared: false,
        run: parts::clients::run,
    },
    Part {
        name: "cost",
        about: "what a call costs with the limiter and without it",
        limit: seconds(60),
        short: Some(seconds(30)),
        is_shared: false,
        run: parts::cost::run,
    },
    Part {
        name: "compute",
        about: "who had the device, by a clock that the kernels themselves read",
        limit: seconds(180),
        short: Some(seconds(30)),
        is_shared: true,
        run: parts::compute::run,
    },
    Part {
        name: "tools",
        about: "nvidia-smi, gpustat and nvitop inside a slice and outside",
        limit: seconds(60),
        short: None,
        is_shared: true,
        run: parts::tools::run,
    },
    Part {
        name: "deaths",
        about: "programs that are killed under load leave nothing behind",
        limit: seconds(120),
        short: None,
        is_shared: false,
        run: parts::deaths::run,
    },
    Part {
        name: "asks",
        about: "which entry points and export tables programs ask the driver for",
        limit: seconds(180),
        short: None,
        is_shared: false,
        run: parts::asks::run,
    },
    Part {
        name: "differences",
        about: "the same kernels on the card and on the emulated device, bit for bit",
        limit: seconds(120),
        short: None,
        is_shared: false,
        run: parts::differences::run,
    },
    Part {
        name: "sharing",
        about: "the ways of sharing that need no setting of the card",
        limit: seconds(60),
        short: None,
        is_shared: false,
        run: parts::sharing::run,
    },
];

/// The part of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_most_comes_first_and_fits_ten_minutes() {
        let names: Vec<&str> = PARTS.iter().take(5).map(|part| part.name).collect();
        assert_eq!(names, ["facts", "memory", "clients", "cost", "compute"]);
        let sum: Duration = PARTS.iter().take(5).map(|part| part.limit).sum();
        assert!(sum <= seconds(600));
        assert!(find("deaths").is_some() && find("nonsense").is_none());
    }
}
