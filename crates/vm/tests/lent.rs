//! The files of a group go to a machine's user and come back, also from a process that was killed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use divvy_host::built::{Built, Function as Place};
use divvy_host::machine::Sysroot;
use divvy_model::Code;
use divvy_vm::group::Group;
use divvy_vm::lent::{Loan, give_back_left, left};
use divvy_vm::record::{Runner, Store};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

const GPU: &str = "0000:0a:00.0";
/// A machine's user, and another one's.
const USERS: [u32; 2] = [80_007, 80_008];
/// An administrator gave the group's file to this user.
const OWNER: u32 = 64_031;

/// A host with a group on VFIO, its two files, and processes 50 and 51.
struct Host {
    built: Built,
    folder: tempfile::TempDir,
}

impl Host {
    /// None without the right to make devices.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let built = Built::at(folder.path());
        built.function(Place {
            address: GPU,
            id: "10de:2330",
            class: "0x030200",
            driver: "vfio-pci",
            port: "0000:00:01.0",
            numa: 0,
            group: 7,
        });
        built.function_file(GPU, "vfio-dev/vfio0/dev", "1:7\n");
        built.file("proc/sys/kernel/random/boot_id", "one\n");
        let host = Self { built, folder };
        for pid in [50, 51] {
            host.process(pid, 1000);
        }
        fs::create_dir_all(host.folder.path().join("dev/vfio/devices")).expect("folders");
        host.device("dev/vfio/7", 3).then_some(())?;
        host.device("dev/vfio/devices/vfio0", 7).then_some(())?;
        std::os::unix::fs::chown(host.folder.path().join("dev/vfio/7"), Some(OWNER), Some(0)).expect("given");
        Some(host)
    }

    fn process(&self, pid: u32, started: u64) {
        let between = "0 ".repeat(18);
        self.built.file(
            &format!("proc/{pid}/stat"),
            &format!("{pid} (divvy) S {between}{started} 0\n"),
        );
    }

    fn device(&self, path: &str, minor: u32) -> bool {
        let path = self.folder.path().join(path);
        let _former = fs::remove_file(&path);
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(1, minor)).is_ok()
    }

    fn root(&self) -> Sysroot {
        Sysroot::at(self.folder.path())
    }

    fn store(&self) -> Store {
        Store::open(self.folder.path()).expect("a folder of records")
    }

    fn lend(&self, pid: u32, user: u32) -> Result<Loan, divvy_model::Fault> {
        let root = self.root();
        let runner = Runner::of(&root, pid).expect("it runs");
        let group = Group::of(&root, GPU).expect("a group");
        Loan::make(&root, &self.store(), runner, user, &[group])
    }

    /// Whose the two files are.
    fn owners(&self) -> [u32; 2] {
        ["dev/vfio/7", "dev/vfio/devices/vfio0"].map(|path| {
            fs::symlink_metadata(self.folder.path().join(path)).map_or(u32::MAX, |found| found.uid())
        })
    }

    fn records(&self) -> usize {
        let folder = self.folder.path().join("var/lib/divvy/vm");
        let names = fs::read_dir(folder).expect("a folder").flatten();
        names
            .filter(|entry| entry.path().extension().is_some_and(|end| end == "loan"))
            .count()
    }

    fn base(&self) -> &Path {
        self.folder.path()
    }
}

#[test]
fn files_go_to_a_machines_user_and_come_back() {
    let Some(host) = Host::new() else { return };
    assert_eq!(host.owners(), [OWNER, 0]);
    let loan = host.lend(50, USERS[0]).expect("lent");
    assert_eq!((host.owners(), host.records()), ([USERS[0]; 2], 1));
    assert_eq!(left(&host.root(), host.base()), Vec::<String>::new());
    assert_eq!(
        give_back_left(&host.root(), &host.store()),
        Ok(Vec::new()),
        "its process runs"
    );
    // A second machine would give them back to the first one's user.
    let refused = host.lend(51, USERS[1]).expect_err("the first machine has it");
    assert_eq!(refused.code, Code::VmHeld);
    assert!(refused.causes[0].contains("process 50"), "{refused:?}");
    assert_eq!((host.owners(), host.records()), ([USERS[0]; 2], 1));
    loan.give_back(&host.root(), &host.store()).expect("back");
    assert_eq!((host.owners(), host.records()), ([OWNER, 0], 0));
}

#[test]
fn what_a_killed_process_lent_comes_back() {
    let Some(host) = Host::new() else { return };
    let lend = || host.lend(50, USERS[0]).expect("lent");
    let back = || give_back_left(&host.root(), &host.store()).expect("back");
    lend();
    // Its number is another process's by now.
    host.process(50, 2000);
    let files = ["/dev/vfio/7", "/dev/vfio/devices/vfio0"];
    assert_eq!(left(&host.root(), host.base()), files);
    assert_eq!(back(), files);
    assert_eq!((host.owners(), host.records()), ([OWNER, 0], 0));
    // Another device has the name of one, and an administrator took the other.
    lend();
    fs::remove_file(host.folder.path().join("proc/50/stat")).expect("killed");
    host.device("dev/vfio/devices/vfio0", 8);
    let given = |path: &str, user| {
        std::os::unix::fs::chown(host.folder.path().join(path), Some(user), None).expect("given");
    };
    given("dev/vfio/devices/vfio0", USERS[0]);
    given("dev/vfio/7", 5000);
    assert_eq!(back(), Vec::<String>::new());
    assert_eq!((host.owners(), host.records()), ([5000, USERS[0]], 0));
    // After a restart of the machine they are the kernel's again, and a process may have all the same numbers.
    host.process(50, 1000);
    given("dev/vfio/devices/vfio0", 0);
    lend();
    host.built.file("proc/sys/kernel/random/boot_id", "two\n");
    assert_eq!(back(), Vec::<String>::new());
    assert_eq!((host.owners(), host.records()), ([USERS[0]; 2], 0));
}

#[test]
fn what_a_record_says_by_hand_is_not_done() {
    let Some(host) = Host::new() else { return };
    host.lend(50, USERS[0]).expect("lent");
    let folder = host.folder.path().join("var/lib/divvy/vm");
    fs::remove_file(host.folder.path().join("proc/50/stat")).expect("killed");
    // A device that is not VFIO's.
    host.device("dev/zero", 5);
    std::os::unix::fs::chown(host.folder.path().join("dev/zero"), Some(USERS[0]), None).expect("given");
    let record = folder.join("50.loan");
    let text = fs::read_to_string(&record).expect("a record");
    let number = |minor| makedev(1, minor).to_string();
    let changed = text
        .replace("dev/vfio/7\"", "dev/vfio/../zero\"")
        .replace(&number(3), &number(5));
    assert_ne!(changed, text);
    fs::write(&record, changed).expect("written");
    let back = give_back_left(&host.root(), &host.store()).expect("back");
    assert_eq!(back, ["/dev/vfio/devices/vfio0"]);
    let zero = fs::symlink_metadata(host.folder.path().join("dev/zero")).expect("there");
    assert_eq!(zero.uid(), USERS[0]);
    for (name, text) in [("51.loan", text.as_str()), ("52.loan", "{")] {
        fs::write(folder.join(name), text).expect("written");
        let refused = give_back_left(&host.root(), &host.store()).expect_err(name);
        assert!(refused.message.contains(name), "{refused:?}");
        fs::remove_file(folder.join(name)).expect("removed");
    }
}
