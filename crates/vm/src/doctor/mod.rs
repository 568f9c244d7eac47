//! What keeps a GPU of this machine from a virtual one. Nothing is changed. The checks come in the order in which their
//! findings are to be fixed: the machine first, then each GPU.

mod gpu;
mod machine;

use divvy_host::machine::Sysroot;
use serde::Serialize;

use crate::distribution::Family;
use crate::function::{Function, Kind};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, with something to know or to do.
    Warn,
    /// No virtual machine can have the GPU until it is fixed.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Examined {
    /// The GPU's PCI address; None for what the whole machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// What was looked at.
    pub check: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Examined {
    fn new(check: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self {
            gpu: None,
            check,
            verdict,
            detail: detail.into(),
            fix: None,
        }
    }

    fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, detail)
    }

    fn warn(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..Self::new(check, Verdict::Warn, detail)
        }
    }

    fn fail(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..Self::new(check, Verdict::Fail, detail)
        }
    }
}

/// Whether a GPU can go to a virtual machine, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reach {
    /// The GPU's PCI address.
    pub gpu: String,
    /// Whether the level `vm` is open: the GPU is on VFIO, or one command brings it there.
    pub vm: bool,
    /// Why it is not.
    pub why_not: Vec<String>,
}

/// All that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How the machine is configured to start.
    pub family: Family,
    /// The checks in order.
    pub checks: Vec<Examined>,
    /// A line for each GPU.
    pub reach: Vec<Reach>,
}

/// Examines a machine, or one of its GPUs. `is_root` says whether the open files of all users can be seen.
#[must_use]
pub fn examine(root: &Sysroot, only: Option<&str>, is_root: bool) -> Report {
    let family = Family::of(root);
    let mut gpus: Vec<Function> = Function::all(root)
        .into_iter()
        .filter(|function| function.kind() == Kind::Gpu)
        .collect();
    let mut checks = machine::checks(root, family, &gpus);
    gpus.retain(|gpu| only.is_none_or(|only| gpu.address == only));
    let general: Vec<String> = failures(&checks);
    let mut reach = Vec::new();
    for gpu in &gpus {
        let own = gpu::checks(root, gpu, is_root);
        let why_not: Vec<String> = general.iter().cloned().chain(failures(&own)).collect();
        reach.push(Reach {
            gpu: gpu.address.clone(),
            vm: why_not.is_empty(),
            why_not,
        });
        checks.extend(own);
    }
    Report {
        family,
        checks,
        reach,
    }
}

fn failures(checks: &[Examined]) -> Vec<String> {
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail);
    failed.map(|check| check.detail.clone()).collect()
}
