//! Runs a program as a kernel before 5.6 would: SO_PEERPIDFD and openat2 are not there.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// The numbers of system calls, which are the same on all 64-bit machines of ours but for getsockopt's.
const OPENAT2: i64 = 437;
#[cfg(target_arch = "x86_64")]
const GETSOCKOPT: i64 = 55;
#[cfg(not(target_arch = "x86_64"))]
const GETSOCKOPT: i64 = 209;
const SO_PEERPIDFD: u64 = 77;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().context("No program")?;
    let option = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, SO_PEERPIDFD)?;
    refuse(OPENAT2, Vec::new(), Errno::NOSYS)?;
    refuse(
        GETSOCKOPT,
        vec![SeccompRule::new(vec![option])?],
        Errno::NOPROTOOPT,
    )?;
    Err(Command::new(program).args(words).exec()).context("The program does not start")
}

/// Has this call, where one of the rules fits, fail from now on.
fn refuse(call: i64, rules: Vec<SeccompRule>, errno: Errno) -> anyhow::Result<()> {
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, rules)]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.raw_os_error().unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    Ok(apply_filter(&program)?)
}
