//! The user that QEMU runs as where its caller is root. A guest that breaks out of QEMU is then a user that has nothing else on
//! this host.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use divvy_privileged::request::MACHINE_UIDS as UIDS;
use divvy_vm::group::Group;
use divvy_vm::lent::Loan;
use divvy_vm::record::{Runner, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A user of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// One that no process is; `None` where the caller is not root, or is root of no more than a namespace of users that lacks
    /// these numbers.
    ///
    /// # Errors
    /// [`Code::VmHost`] where each may be a person's. QEMU does not run as root in its place.
    pub(super) fn own() -> Result<Option<Self>, Fault> {
        let is_root = rustix::process::geteuid().is_root();
        let has = |file: &str| std::fs::read_to_string(file).map_or(true, |text| maps(&text));
        if !is_root || !has("/proc/self/uid_map") || !has("/proc/self/gid_map") {
            return Ok(None);
        }
        let taken = users();
        let count = UIDS.end() - UIDS.start() + 1;
        let uid = (0..count)
            .map(|step| UIDS.start() + (std::process::id() + step) % count)
            .find(|uid| !taken.contains(uid) && !divvy_privileged::user::is_known(*uid));
        let uid = uid.ok_or_else(|| {
            Fault::new(Code::VmHost, "QEMU has no user of its own on this host")
                .cause(format!(
                    "each number from {} to {} is a user's, or `/etc/passwd` cannot be read",
                    UIDS.start(),
                    UIDS.end()
                ))
                .hint(
                    "`getent passwd 80000` says whose they are; a caller other than root runs QEMU as itself",
                )
        })?;
        let kvm = std::fs::metadata("/dev/kvm").ok();
        let gid = kvm.as_ref().and_then(group).unwrap_or(uid);
        Ok(Some(Self { uid, gid }))
    }

    /// Whether it may have the host's processors, as `/dev/kvm` says.
    pub(super) fn has_kvm(self) -> bool {
        std::fs::metadata("/dev/kvm").is_ok_and(|found| {
            let own = if found.gid() == self.gid { 0o060 } else { 0o006 };
            found.mode() & own == own
        })
    }

    /// Makes it the user of a program that is started next. The program may lock as much memory as this process can permit: its
    /// device has to reach the guest's.
    pub(super) fn becomes(self, command: &mut Command) {
        let most = getrlimit(Resource::Memlock).maximum;
        for limit in [None, most] {
            let wanted = Rlimit {
                current: limit,
                maximum: limit,
            };
            // In a container root may lack the right. QEMU says so where it is short of it.
            if setrlimit(Resource::Memlock, wanted).is_ok() {
                break;
            }
        }
        command.uid(self.uid).gid(self.gid);
    }

    /// Gives it the files by which programs have groups that are on VFIO, for the time of this process.
    ///
    /// # Errors
    /// As [`Loan::make`].
    pub(super) fn lend(self, tree: &Sysroot, store: &Store, groups: &[Group]) -> Result<Loan, Fault> {
        let runner = Runner::of(tree, std::process::id())
            .ok_or_else(|| Fault::new(Code::Internal, "this process is not in /proc"))?;
        Loan::make(tree, store, runner, self.uid, groups)
    }
}

/// The group that has the host's processors. Root's has other files too.
fn group(kvm: &Metadata) -> Option<u32> {
    (kvm.mode() & 0o060 == 0o060 && kvm.gid() != 0).then_some(kvm.gid())
}

/// Whether all of these numbers mean users here, by the kernel's lines of `FIRST OUTSIDE COUNT`.
fn maps(text: &str) -> bool {
    text.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        first <= u64::from(*UIDS.start()) && first + count > u64::from(*UIDS.end())
    })
}

/// The users of all processes.
fn users() -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten();
    let found = processes.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.uid()));
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_mean_no_user_here_are_not_used() {
        assert!(maps("         0          0 4294967295\n"));
        assert!(maps("0 100000 65536\n65536 300000 65536\n"));
        assert!(!maps("0 100000 65536\n65536 300000 20000\n"), "not all of them");
        assert!(maps("0 100000 65536\n80000 300000 10000\n"));
        assert!(!maps("0 1000 1\n"));
        assert!(!maps(""));
    }

    #[test]
    fn no_other_process_is_a_machines_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let Some(user) = User::own().expect("one") else {
            return;
        };
        assert!(UIDS.contains(&user.uid));
        assert_ne!(user.gid, 0);
        let mut command = Command::new("sleep");
        user.becomes(command.arg("60"));
        let mut first = command.spawn().expect("it starts");
        let next = User::own().expect("one").expect("there is another");
        first.kill().expect("killed");
        first.wait().expect("its end");
        assert_ne!(next.uid, user.uid);
    }
}
