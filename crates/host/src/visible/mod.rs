//! Which devices a program sees, by the variables in its environment and the exact rules of each runtime.
//!
//! The rules are those of the runtimes' sources: ROCr's filter (ROCm/ROCR-Runtime, `amd_filter_device.cpp`), clr's
//! (ROCm/clr, `rocdevice.cpp`) for HIP and OpenCL, and for CUDA the programming guide and the MIG user guide.
//! Everything here is a function of an environment and a list of devices.
//!
//! Variables are no isolation: a program may change them before it starts a runtime.

mod cuda;
mod explain;
mod hip;
mod list;
mod number;
mod rocr;
mod set;
mod warn;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use explain::{Explained, View, explain};
pub use list::{Seen, SeenDevice};
pub use set::{Target, settings};

/// An environment: names and values, as `/proc/N/environ` has them.
pub type Environment = BTreeMap<String, String>;

/// A runtime that chooses devices by variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runtime {
    /// ROCr itself, and what stands on it directly.
    Rocm,
    /// HIP, on ROCr.
    Hip,
    /// AMD's OpenCL, on ROCr.
    OpenCl,
    /// OpenMP offloading: on ROCr for AMD, on the CUDA driver for NVIDIA.
    OpenMp,
    /// The CUDA driver.
    Cuda,
}

impl Runtime {
    /// Every runtime.
    pub const ALL: [Self; 5] = [Self::Rocm, Self::Hip, Self::OpenCl, Self::OpenMp, Self::Cuda];

    /// The word on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rocm => "rocm",
            Self::Hip => "hip",
            Self::OpenCl => "opencl",
            Self::OpenMp => "openmp",
            Self::Cuda => "cuda",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Runtime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|runtime| runtime.name() == text)
            .ok_or_else(|| format!("`{text}` is no runtime; choose rocm, hip, opencl, openmp, cuda or all"))
    }
}

/// What one variable made of a list: places in that list, and how it came to that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Filtered {
    /// Places in the list that was filtered, in the order the program sees them.
    chosen: Vec<usize>,
    /// What was done with each entry.
    steps: Vec<String>,
    /// What is likely not what the user meant.
    warnings: Vec<String>,
}

impl Filtered {
    fn all(count: usize, step: String) -> Self {
        Self {
            chosen: (0..count).collect(),
            steps: vec![step],
            warnings: Vec::new(),
        }
    }

    fn none(step: String) -> Self {
        Self {
            steps: vec![step],
            ..Self::default()
        }
    }

    /// The list ends at `entry`; the entries after it are lost.
    fn stop(&mut self, variable: &str, entry: &str, why: &str, lost: usize) {
        self.steps.push(format!("`{entry}`: {why}; the list ends here"));
        let after = match lost {
            0 => String::new(),
            1 => ", and the entry after it is not read".into(),
            many => format!(", and the {many} entries after it are not read"),
        };
        self.warnings
            .push(format!("{variable}: the list ends at `{entry}` ({why}){after}"));
    }

    fn take(&mut self, entry: &str, place: usize, why: &str) {
        self.steps.push(format!("`{entry}`: {why}device {place}"));
        self.chosen.push(place);
    }
}
