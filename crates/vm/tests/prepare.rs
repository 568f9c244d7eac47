//! What the start of a machine is told, by distribution: golden plans, and a way back that leaves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use divvy_host::built::Built;
use divvy_host::machine::Sysroot;
use divvy_model::Code;
use divvy_vm::prepare::apply::{apply, undo};
use divvy_vm::prepare::plan::Plan;
use divvy_vm::record::Store;

const GRUB: &str = "GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet splash\"\n";
const ENTRY: &str = "title Linux\nlinux /vmlinuz\noptions root=/dev/sda2 rw\n";

/// A distribution's name, its os-release, and the files that its plan is about.
type Distribution = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// One of each kind.
const MACHINES: [Distribution; 10] = [
    (
        "debian",
        "ID=debian\n",
        &[
            ("etc/default/grub", GRUB),
            ("etc/initramfs-tools/modules", "# List\n"),
        ],
    ),
    (
        "ubuntu",
        "ID=ubuntu\nID_LIKE=debian\n",
        &[
            ("etc/default/grub", GRUB),
            ("etc/initramfs-tools/modules", "# List\nloop"),
        ],
    ),
    (
        "rocky",
        "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
        &[("boot/loader/entries/a.conf", ENTRY)],
    ),
    (
        "anolis",
        "ID=\"anolis\"\nID_LIKE=\"rhel fedora centos\"\n",
        &[("etc/default/grub", GRUB)],
    ),
    (
        "loongnix",
        "ID=loongnix-server\nID_LIKE=\"rhel fedora\"\n",
        &[("etc/default/grub", GRUB)],
    ),
    (
        "opensuse",
        "ID=opensuse-leap\nID_LIKE=\"suse opensuse\"\n",
        &[("etc/default/grub", GRUB)],
    ),
    ("arch-grub", "ID=arch\n", &[("etc/default/grub", GRUB)]),
    (
        "arch-systemd-boot",
        "ID=arch\n",
        &[
            ("boot/loader/entries/arch.conf", ENTRY),
            ("boot/loader/entries/fallback.conf", ENTRY),
        ],
    ),
    (
        "systemd-boot-cmdline",
        "ID=nixish\n",
        &[
            ("boot/loader/entries/a.conf", ENTRY),
            ("etc/kernel/cmdline", "root=/dev/sda2 rw\n"),
        ],
    ),
    (
        "silverblue",
        "ID=fedora\n",
        &[("run/ostree-booted", ""), ("boot/loader/entries/a.conf", ENTRY)],
    ),
];

fn machine(release: &str, files: &[(&str, &str)], vendor: &str) -> (tempfile::TempDir, Built) {
    let folder = tempfile::tempdir().expect("a folder");
    let built = Built::at(folder.path());
    built.file("etc/os-release", release);
    built.file(
        "proc/cpuinfo",
        &format!("vendor_id\t: {vendor}\nflags\t\t: vmx\n"),
    );
    built.file("proc/cmdline", "quiet\n");
    // As after an earlier look: the folder of records stays.
    built.file("var/lib/divvy/vm/lock", "");
    for (path, text) in files {
        built.file(path, text);
    }
    (folder, built)
}

fn plan(built: &Built) -> Plan {
    Plan::make(&Sysroot::at(built.root()), false).expect("a plan")
}

/// Every file and folder with its bytes and mode.
fn everything(root: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let facts = path.symlink_metadata().expect("it is there");
            let name = path
                .strip_prefix(root)
                .expect("below")
                .to_string_lossy()
                .into_owned();
            if facts.is_dir() {
                all.insert(name, (facts.mode(), Vec::new()));
                folders.push(path);
            } else {
                all.insert(name, (facts.mode(), std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    all
}

#[test]
fn plans_are_golden() {
    let mut text = String::new();
    for (name, release, files) in MACHINES {
        let (_folder, built) = machine(release, files, "GenuineIntel");
        let _ = write!(text, "== {name}\n{}", plan(&built).text());
    }
    let (_folder, amd) = machine(MACHINES[0].1, MACHINES[0].2, "AuthenticAMD");
    let _ = write!(text, "== debian on AMD\n{}", plan(&amd).text());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans.txt");
    if std::env::var_os("DIVVY_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&golden, &text).expect("written");
    }
    let known = std::fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(text, known, "DIVVY_GOLDEN=write writes it again");
}

#[test]
fn what_is_applied_and_undone_leaves_every_byte() {
    for (name, release, files) in MACHINES {
        let (folder, built) = machine(release, files, "GenuineIntel");
        let before = everything(folder.path());
        let first = plan(&built);
        apply(folder.path(), &first).expect(name);
        for change in &first.changes {
            let now = std::fs::read_to_string(folder.path().join(&change.path)).expect("it is there");
            assert_eq!(now, change.after, "{name}");
        }
        // Again there is nothing to write.
        assert_eq!(plan(&built).changes, [], "{name}");
        let commands = undo(folder.path()).expect(name);
        assert_eq!(commands.len(), first.commands.len(), "{name}");
        assert_eq!(everything(folder.path()), before, "{name}");
        assert!(undo(folder.path()).is_err(), "{name}: nothing is left to undo");
    }
}

#[test]
fn files_that_people_edited_are_let_be() {
    let odd = "GRUB_CMDLINE_LINUX_DEFAULT=\"$(cat /etc/mine)\"\n";
    let (_folder, built) = machine("ID=arch\n", &[("etc/default/grub", odd)], "GenuineIntel");
    let fault = Plan::make(&Sysroot::at(built.root()), false).expect_err("a person has to");
    assert!(fault.message.contains("only a person should change"), "{fault:?}");
    // Changed since it was written.
    let (folder, built) = machine(MACHINES[6].1, MACHINES[6].2, "GenuineIntel");
    apply(folder.path(), &plan(&built)).expect("it is written");
    let second = apply(folder.path(), &plan(&built)).expect_err("one is applied");
    assert!(second.hint.is_some_and(|hint| hint.contains("--undo")));
    built.file("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"mine\"\n");
    let fault = undo(folder.path()).expect_err("it was changed");
    assert!(fault.message.contains("was changed since"), "{fault:?}");
    let now = std::fs::read_to_string(folder.path().join("etc/default/grub")).expect("it is there");
    assert!(now.contains("mine"));
    // A link leads elsewhere.
    let (folder, built) = machine(MACHINES[6].1, MACHINES[6].2, "GenuineIntel");
    let planned = plan(&built);
    let outside = tempfile::tempdir().expect("a folder");
    std::fs::write(outside.path().join("grub"), GRUB).expect("written");
    built.remove("etc/default/grub");
    symlink(
        outside.path().join("grub"),
        folder.path().join("etc/default/grub"),
    )
    .expect("a link");
    let fault = apply(folder.path(), &planned).expect_err("a link");
    assert!(fault.message.contains("is a link"), "{fault:?}");
    assert_eq!(
        std::fs::read_to_string(outside.path().join("grub")).expect("a file"),
        GRUB
    );
    let (_folder, built) = machine("ID=plan9\n", &[], "GenuineIntel");
    let fault = Plan::make(&Sysroot::at(built.root()), false).expect_err("not known");
    assert!(
        fault
            .hint
            .is_some_and(|hint| hint.contains("intel_iommu=on iommu=pt"))
    );
}

#[test]
fn what_fails_on_the_way_is_put_back() {
    let (folder, built) = machine(MACHINES[0].1, MACHINES[0].2, "GenuineIntel");
    let planned = plan(&built);
    // A folder where the third file has to go.
    let last = &planned.changes.last().expect("some").path;
    built.file(&format!("{last}/in-the-way"), "");
    let before = everything(folder.path());
    let fault = apply(folder.path(), &planned).expect_err("a folder is in the way");
    assert!(
        fault
            .causes
            .iter()
            .any(|cause| cause == "the files are as they were")
            || !folder.path().join("var/lib/divvy/vm/prepare").exists(),
        "{fault:?}"
    );
    let mut after = everything(folder.path());
    after.retain(|name, _| !name.contains("divvy-new") && !name.contains("vm/prepare"));
    assert_eq!(after, before);
}

/// A machine's copy may be another user's, who puts a link where a file is about to be written.
#[test]
fn nothing_outside_a_hostile_copy_changes() {
    let outside = tempfile::tempdir().expect("a folder");
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "mine").expect("written");
    let (folder, built) = machine(MACHINES[0].1, MACHINES[0].2, "GenuineIntel");
    let planned = plan(&built);
    let link = |path: &str| symlink(&secret, folder.path().join(path)).expect("a link");
    for change in &planned.changes {
        let aside = Path::new(&change.path).with_extension("divvy-new");
        let above = folder.path().join(&change.path);
        std::fs::create_dir_all(above.parent().expect("a folder")).expect("a folder");
        let names = [
            aside.to_string_lossy().into_owned(),
            format!("{}.divvy-new", change.path),
        ];
        for name in BTreeSet::from(names) {
            link(&name);
        }
    }
    apply(folder.path(), &planned).expect("written in the tree");
    assert_eq!(std::fs::read_to_string(&secret).expect("a file"), "mine");
    undo(folder.path()).expect("put back");
    assert_eq!(std::fs::read_to_string(&secret).expect("a file"), "mine");
    // A folder of its own leads elsewhere, and what is there is no file.
    let first = &planned.changes.last().expect("some").path;
    let above = Path::new(first).parent().expect("a folder");
    std::fs::remove_dir_all(folder.path().join(above)).expect("removed");
    symlink(outside.path(), folder.path().join(above)).expect("a link");
    let fault = apply(folder.path(), &planned).expect_err("a link");
    assert!(fault.message.contains("is a link"), "{fault:?}");
    assert_eq!(std::fs::read_dir(outside.path()).expect("a folder").count(), 1);
}

#[test]
fn what_was_edited_behind_the_plan_is_let_be() {
    let (folder, built) = machine(MACHINES[6].1, MACHINES[6].2, "GenuineIntel");
    let planned = plan(&built);
    let edited = format!("{GRUB}GRUB_TIMEOUT=1\n");
    built.file("etc/default/grub", &edited);
    let fault = apply(folder.path(), &planned).expect_err("it was edited");
    assert!(fault.message.contains("was changed while"), "{fault:?}");
    let now = std::fs::read_to_string(folder.path().join("etc/default/grub")).expect("it is there");
    assert_eq!(now, edited);
    apply(folder.path(), &plan(&built)).expect("the new plan is applied");
    undo(folder.path()).expect("put back");
    let now = std::fs::read_to_string(folder.path().join("etc/default/grub")).expect("it is there");
    assert_eq!(now, edited);
}

#[test]
fn two_administrators_do_not_write_at_once() {
    let (folder, built) = machine(MACHINES[0].1, MACHINES[0].2, "GenuineIntel");
    let (before, planned) = (everything(folder.path()), plan(&built));
    let first = Store::open(folder.path()).expect("a folder of records");
    for fault in [
        apply(folder.path(), &planned).expect_err("another is at work"),
        undo(folder.path()).map(|_| ()).expect_err("another is at work"),
    ] {
        assert_eq!(fault.code, Code::VmHeld);
        assert!(fault.message.contains("another `divvy vm`"), "{fault:?}");
    }
    assert_eq!(everything(folder.path()), before);
    drop(first);
    apply(folder.path(), &planned).expect("it is alone");
}

/// With systemd, the plan has the unit that binds groups again; a package's own is only enabled.
#[test]
fn groups_go_to_vfio_again_at_each_start() {
    for packaged in [false, true] {
        let (folder, built) = machine(MACHINES[0].1, MACHINES[0].2, "GenuineIntel");
        built.file("usr/lib/systemd/system/basic.target", "");
        built.file("etc/systemd/system/multi-user.target.wants/x", "");
        if packaged {
            built.file("usr/lib/systemd/system/divvy-vm-restore.service", "");
        }
        let before = everything(folder.path());
        let root = Sysroot::at(built.root());
        let make = || {
            let plan = Plan::make(&root, false).expect("a plan");
            plan.with_restore(&root, Path::new("/opt/bin/divvy"))
                .expect("a plan")
        };
        let first = make();
        let unit = "etc/systemd/system/divvy-vm-restore.service";
        let written = first.changes.iter().find(|change| change.path == unit);
        assert_eq!(
            written.map(|change| change.after.contains("\nExecStart=/opt/bin/divvy vm restore\n")),
            (!packaged).then_some(true)
        );
        let last = first.commands.last().expect("a command");
        assert_eq!(last.words, ["systemctl", "enable", "divvy-vm-restore.service"]);
        apply(folder.path(), &first).expect("written");
        // As systemd does it.
        let link = "etc/systemd/system/multi-user.target.wants/divvy-vm-restore.service";
        assert_eq!(last.undo, ["rm", "-f", &format!("/{link}")]);
        built.link(link, &format!("/{unit}"));
        assert!(make().is_empty(), "again there is nothing to do");
        undo(folder.path()).expect("put back");
        built.remove(link);
        assert_eq!(everything(folder.path()), before);
    }
    // Without systemd there is no unit.
    let (_folder, built) = machine(MACHINES[0].1, MACHINES[0].2, "GenuineIntel");
    let root = Sysroot::at(built.root());
    let without = plan(&built)
        .with_restore(&root, Path::new("/divvy"))
        .expect("a plan");
    assert_eq!(without, plan(&built));
}

/// An end in the middle of `--apply` leaves the last files as they were, and one of `--undo` the first.
#[test]
fn an_end_in_the_middle_can_be_undone() {
    for (name, release, files) in MACHINES {
        let (folder, built) = machine(release, files, "GenuineIntel");
        let before = everything(folder.path());
        let planned = plan(&built);
        for cut in 0..=planned.changes.len() {
            for applying in [true, false] {
                // What a plan before this one left while it was being kept.
                built.file("var/lib/divvy/vm/prepare.new/list.json", "{");
                apply(folder.path(), &planned).expect(name);
                let (done, open) = planned.changes.split_at(cut);
                for change in if applying { open } else { done } {
                    match &change.before {
                        Some(text) => built.file(&change.path, text),
                        None => built.remove(&change.path),
                    }
                }
                assert!(
                    apply(folder.path(), &planned).is_err(),
                    "{name}: it is not undone"
                );
                undo(folder.path()).unwrap_or_else(|fault| panic!("{name} {cut} {applying}: {fault:?}"));
                assert_eq!(everything(folder.path()), before, "{name} {cut} {applying}");
            }
        }
    }
}
