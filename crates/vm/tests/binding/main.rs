//! Groups go to VFIO and come back, whatever fails on the way.

mod played;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use divvy_model::{Code, Fault};
use divvy_vm::bind::{Consent, Plan, bind, bind_for, put_back_run, unbind};
use divvy_vm::record::{Runner, Store};
use divvy_vm::restore::{Outcome, restore};
use divvy_vm::status::{State, status};

use played::{AUDIO, GPU, KILLED, NIC, Played, Trouble};

fn store(played: &Played) -> Store {
    Store::open(played.folder.path()).expect("a folder of records")
}

fn try_bind(played: &mut Played) -> Result<Plan, Fault> {
    let (root, store) = (played.root(), store(played));
    bind(&root, played, &store, GPU, &Consent::default())
}

fn try_unbind(played: &mut Played) -> Result<(), Fault> {
    let (root, store) = (played.root(), store(played));
    unbind(&root, played, &store, GPU).map(|_| ())
}

fn put_right(played: &mut Played) -> Vec<Outcome> {
    let (root, store) = (played.root(), store(played));
    let all = restore(&root, played, &store).expect("records");
    all.into_iter().map(|one| one.outcome).collect()
}

fn on_vfio(played: &Played) -> bool {
    [GPU, AUDIO]
        .iter()
        .all(|address| played.driver(address).as_deref() == Some("vfio-pci"))
}

fn state(played: &Played) -> State {
    status(&played.root(), played.folder.path())[0].state
}

/// Runs something that a crash may end; whether one did.
fn crashes(played: &mut Played, act: impl FnOnce(&mut Played)) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let ended = catch_unwind(AssertUnwindSafe(|| act(played)));
    std::panic::set_hook(hook);
    match ended {
        Ok(()) => false,
        Err(why) if why.downcast_ref() == Some(&KILLED) => true,
        Err(why) => std::panic::resume_unwind(why),
    }
}

#[test]
fn a_group_goes_and_comes_back() {
    let mut played = Played::new(false);
    assert_eq!(state(&played), State::Host);
    let plan = try_bind(&mut played).expect("it goes");
    assert_eq!(plan.modules, ["vfio_pci"]);
    assert!(on_vfio(&played));
    assert_eq!(
        played.driver(NIC).as_deref(),
        Some("e1000e"),
        "another group stays"
    );
    let now = &status(&played.root(), played.folder.path())[0];
    assert_eq!((now.state, now.viable, now.group), (State::Bound, true, Some(7)));
    assert_eq!(now.functions[1].first_driver.as_deref(), Some("snd_hda_intel"));
    // Again changes nothing.
    played.with(Trouble::FailsOn(0));
    assert_eq!(try_bind(&mut played).expect("it is there").changes, []);
    played.with(Trouble::None);
    try_unbind(&mut played).expect("it comes back");
    assert!(played.is_as_first());
    assert_eq!(
        try_unbind(&mut played).expect_err("it is back").code,
        Code::VmGroup
    );
    assert_eq!(put_right(&mut played), []);
}

/// The number of writes of a bind and of an unbind that meet no trouble.
fn writes() -> (usize, usize) {
    let mut played = Played::new(false);
    try_bind(&mut played).expect("it goes");
    let bind = played.writes.get();
    played.with(Trouble::None);
    try_unbind(&mut played).expect("it comes back");
    (bind, played.writes.get())
}

#[test]
fn a_write_that_fails_leaves_everything_as_it_was() {
    let (count, back) = writes();
    assert_eq!((count, back), (6, 8));
    for at in 0..count {
        let mut played = Played::new(false);
        played.with(Trouble::Fails(at));
        let fault = try_bind(&mut played).expect_err("a write fails");
        assert_eq!(fault.code, Code::VmBind, "{at}: {fault:?}");
        assert!(
            fault.causes.contains(&"the first drivers are back".to_owned()),
            "{at}: {fault:?}"
        );
        assert!(played.is_as_first(), "{at}");
        assert!(
            fault.hint.is_some_and(|hint| hint.contains("on the host itself")),
            "{at}"
        );
        played.with(Trouble::None);
        assert_eq!(put_right(&mut played), [], "{at}: no record is left");
        try_bind(&mut played).expect("it goes now");
    }
    // On the way back, what failed is put right later.
    for at in 0..back {
        let mut played = Played::new(false);
        try_bind(&mut played).expect("it goes");
        played.with(Trouble::Fails(at));
        let fault = try_unbind(&mut played).expect_err("a write fails");
        assert_eq!(fault.code, Code::VmBind, "{at}");
        assert_eq!(state(&played), State::Unfinished, "{at}");
        played.with(Trouble::None);
        assert_eq!(put_right(&mut played), [Outcome::PutBack], "{at}");
        assert!(played.is_as_first(), "{at}");
    }
}

#[test]
fn a_way_back_that_fails_too_is_remembered() {
    let (count, _) = writes();
    for at in 1..count {
        let mut played = Played::new(false);
        played.with(Trouble::FailsOn(at));
        let fault = try_bind(&mut played).expect_err("writes fail");
        assert!(
            fault
                .causes
                .last()
                .is_some_and(|cause| cause.starts_with("not put back")),
            "{fault:?}"
        );
        assert_eq!(state(&played), State::Unfinished, "{at}");
        let again = try_bind(&mut played).expect_err("it is half done");
        assert!(
            again.hint.is_some_and(|hint| hint.contains("divvy vm restore")),
            "{at}"
        );
        assert_eq!(put_right(&mut played), [Outcome::Failed], "{at}: still");
        played.with(Trouble::None);
        assert_eq!(put_right(&mut played), [Outcome::PutBack], "{at}");
        assert!(played.is_as_first(), "{at}");
    }
}

#[test]
fn a_crash_at_any_write_is_put_right() {
    let (count, back) = writes();
    for at in 0..count {
        let mut played = Played::new(false);
        played.with(Trouble::Crash(at));
        assert!(crashes(&mut played, |played| drop(try_bind(played))), "{at}");
        assert_eq!(state(&played), State::Unfinished, "{at}");
        played.with(Trouble::None);
        assert_eq!(put_right(&mut played), [Outcome::PutBack], "{at}");
        assert!(played.is_as_first(), "{at}");
    }
    for at in 0..back {
        let mut played = Played::new(false);
        try_bind(&mut played).expect("it goes");
        played.with(Trouble::Crash(at));
        assert!(crashes(&mut played, |played| drop(try_unbind(played))), "{at}");
        played.with(Trouble::None);
        assert_eq!(put_right(&mut played), [Outcome::PutBack], "{at}");
        assert!(played.is_as_first(), "{at}");
    }
}

#[test]
fn after_a_restart_what_was_bound_is_bound_again() {
    let mut played = Played::new(false);
    try_bind(&mut played).expect("it goes");
    assert_eq!(put_right(&mut played), [Outcome::Unchanged]);
    played.reboot();
    assert_eq!(put_right(&mut played), [Outcome::BoundAgain]);
    assert!(on_vfio(&played));
    try_unbind(&mut played).expect("it comes back");
    assert!(played.is_as_first());

    // A change that had not ended is over with the restart.
    played.with(Trouble::Crash(3));
    assert!(crashes(&mut played, |played| drop(try_bind(played))));
    played.with(Trouble::None);
    played.built.file("proc/sys/kernel/random/boot_id", "three\n");
    played.reboot();
    played.built.file("proc/sys/kernel/random/boot_id", "four\n");
    assert_eq!(put_right(&mut played), [Outcome::PutBack]);
    assert!(played.is_as_first());
}

/// Consent is for a device: what is at its address after a restart may be another one.
#[test]
fn after_a_restart_another_card_in_the_slot_is_not_given_away() {
    for (address, outcome) in [(GPU, Outcome::Forgotten), (NIC, Outcome::Failed)] {
        let mut played = Played::new(true);
        let consent = Consent {
            with: vec![NIC.to_owned()],
            ..Consent::default()
        };
        let (root, records) = (played.root(), store(&played));
        bind(&root, &mut played, &records, GPU, &consent).expect("it goes");
        drop(records);
        played.reboot();
        let before: Vec<_> = [GPU, AUDIO, NIC].map(|address| played.driver(address)).into();
        played.built.function_file(address, "device", "0x1234\n");
        assert_eq!(put_right(&mut played), [outcome], "{address}");
        let after: Vec<_> = [GPU, AUDIO, NIC].map(|address| played.driver(address)).into();
        assert_eq!(after, before, "{address}");
    }
}

#[test]
fn a_device_that_is_pulled_out_takes_nothing_with_it() {
    let (count, _) = writes();
    for at in 0..count {
        let mut played = Played::new(false);
        played.with(Trouble::Unplug(at));
        let fault = try_bind(&mut played).expect_err("it is gone");
        assert_eq!(fault.code, Code::VmBind, "{at}");
        assert_eq!(
            played.driver(AUDIO).as_deref(),
            Some("snd_hda_intel"),
            "{at}: {fault:?}"
        );
        assert_eq!(played.only(AUDIO).as_deref(), Some("(null)"), "{at}");
    }
    let mut played = Played::new(false);
    try_bind(&mut played).expect("it goes");
    // While a machine has it, too: what is left of the group stays where it is.
    played.built.file("proc/42/comm", "qemu-system-x86\n");
    played.built.link("proc/42/fd/9", "/dev/vfio/7");
    played.unplug(GPU);
    let fault = try_unbind(&mut played).expect_err("it is gone");
    assert_eq!(fault.code, Code::UnknownDevice);
    assert!(
        fault
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("`divvy vm restore` forgets it")),
        "{fault:?}"
    );
    assert_eq!(played.driver(AUDIO).as_deref(), Some("vfio-pci"));
    played.built.remove("proc/42");
    played.unplug(AUDIO);
    assert_eq!(put_right(&mut played), [Outcome::Forgotten]);
    // Without a record there is nothing to forget.
    let fault = try_unbind(&mut played).expect_err("it is gone");
    assert!(
        fault
            .hint
            .as_deref()
            .is_some_and(|hint| !hint.contains("restore")),
        "{fault:?}"
    );
}

/// The card leaves the machine between the plan and the first write: nothing is remembered of it, and nothing changes.
#[test]
fn a_device_that_goes_behind_the_plan_is_told_of() {
    let mut played = Played::new(false);
    // The first write is the override of the GPU.
    played.with(Trouble::Unplug(0));
    let fault = try_bind(&mut played).expect_err("it is gone");
    assert_eq!(fault.code, Code::VmBind);
    assert!(
        fault
            .message
            .contains("0000:01:00.0 was taken out of the machine"),
        "{fault:?}"
    );
    assert!(fault.causes[0].contains("driver_override"), "{fault:?}");
    assert!(
        fault.causes.contains(&"the first drivers are back".to_owned()),
        "{fault:?}"
    );
    played.with(Trouble::None);
    assert_eq!(put_right(&mut played), []);
    assert_eq!(played.driver(AUDIO).as_deref(), Some("snd_hda_intel"));
    let fault = try_bind(&mut played).expect_err("it is gone");
    assert_eq!(fault.code, Code::UnknownDevice);
}

#[test]
fn functions_of_other_cards_go_with_consent_only() {
    let mut played = Played::new(true);
    let fault = try_bind(&mut played).expect_err("a network card is in the group");
    assert_eq!(fault.code, Code::VmGroup);
    assert!(
        fault.causes[0].contains(NIC) && fault.causes[0].contains("network card"),
        "{fault:?}"
    );
    assert!(
        fault
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("--with 0000:03:00.0")),
        "{fault:?}"
    );
    assert!(played.is_as_first());
    let (root, store) = (played.root(), store(&played));
    let with = |addresses: &[&str]| Consent {
        with: addresses.iter().map(|address| (*address).to_owned()).collect(),
        boot_display: false,
    };
    let wrong =
        bind(&root, &mut played, &store, GPU, &with(&[NIC, "0000:09:00.0"])).expect_err("it is not there");
    assert!(
        wrong.message.contains("0000:09:00.0 is not in IOMMU group 7"),
        "{wrong:?}"
    );
    bind(&root, &mut played, &store, GPU, &with(&[NIC])).expect("it goes along");
    assert_eq!(played.driver(NIC).as_deref(), Some("vfio-pci"));
    unbind(&root, &mut played, &store, GPU).expect("it comes back");
    assert!(played.is_as_first());

    // The console's display, too.
    let mut played = Played::new(false);
    played.built.function_file(GPU, "boot_vga", "1\n");
    let fault = try_bind(&mut played).expect_err("the console is there");
    assert!(fault.hint.is_some_and(|hint| hint.contains("--boot-display")));
}

#[test]
fn what_is_in_use_stays() {
    let mut played = Played::new(true);
    let consent = Consent {
        with: vec![NIC.to_owned()],
        boot_display: false,
    };
    played.built.file(
        "proc/driver/nvidia/gpus/0000:01:00.0/information",
        "Device Minor: \t 0\n",
    );
    let refused = |played: &mut Played, wanted: &str| {
        let (root, store) = (played.root(), store(played));
        let fault = bind(&root, played, &store, GPU, &consent).expect_err("it is in use");
        assert!(
            fault.code == Code::VmHeld && fault.causes[0].contains(wanted),
            "{fault:?}"
        );
        assert!(played.is_as_first());
    };
    played.built.file("proc/41/comm", "nvidia-persiste\n");
    played.built.link("proc/41/fd/3", "/dev/nvidia0");
    refused(&mut played, "process 41 (nvidia-persiste) has /dev/nvidia0 open");
    played.built.remove("proc/41");
    played.built.link(
        "sys/class/net/eth0",
        "../../devices/pci0000:00/0000:00:02.0/0000:03:00.0/net/eth0",
    );
    played.built.function_file(NIC, "net/eth0/flags", "0x1003\n");
    refused(&mut played, "eth0 is up");
    played.built.function_file(NIC, "net/eth0/flags", "0x1002\n");
    let (root, records) = (played.root(), store(&played));
    bind(&root, &mut played, &records, GPU, &consent).expect("it goes");
    // A machine that runs on it.
    played.built.file("proc/42/comm", "qemu-system-x86\n");
    played.built.link("proc/42/fd/9", "/dev/vfio/7");
    assert_eq!(state(&played), State::InUse);
    let fault = unbind(&root, &mut played, &records, GPU).expect_err("a machine has it");
    assert_eq!(
        (fault.code, fault.message.as_str()),
        (Code::VmHeld, "a virtual machine has the device")
    );
    assert!(on_vfio(&played));
}

#[test]
fn a_change_that_did_not_end_is_not_taken_back_from_a_machine() {
    let mut played = Played::new(false);
    try_bind(&mut played).expect("it goes");
    // Killed before it took anything from VFIO.
    played.with(Trouble::Crash(0));
    assert!(crashes(&mut played, |played| drop(try_unbind(played))));
    played.with(Trouble::None);
    assert!(on_vfio(&played));
    played.built.file("proc/42/comm", "qemu-system-x86\n");
    played.built.link("proc/42/fd/9", "/dev/vfio/7");
    assert_eq!(put_right(&mut played), [Outcome::Failed]);
    assert!(on_vfio(&played));
    played.built.remove("proc/42/fd/9");
    assert_eq!(put_right(&mut played), [Outcome::PutBack]);
    assert!(played.is_as_first());
}

#[test]
fn two_administrators_do_not_meet() {
    let played = Played::new(false);
    let first = store(&played);
    let fault = Store::open(played.folder.path()).expect_err("another is at work");
    assert_eq!(fault.code, Code::VmHeld);
    // To give something back the second one waits.
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Store::open_within(played.folder.path(), Duration::from_secs(60)));
        drop(first);
        second.join().expect("no panic").expect("it is its turn");
    });
    let _third = store(&played);
    let fault = Store::open_within(played.folder.path(), Duration::ZERO).expect_err("it does not end");
    assert_eq!(fault.code, Code::VmHeld);
}

/// A process that has ended.
const GONE: Runner = Runner {
    pid: 4_000_000,
    started: 1,
};

fn try_run(played: &mut Played) -> Result<Plan, Fault> {
    let (root, store) = (played.root(), store(played));
    bind_for(&root, played, &store, GPU, &Consent::default(), Some(GONE))
}

#[test]
fn a_run_that_is_killed_at_any_moment_is_put_right() {
    let (count, _) = writes();
    for at in 0..count {
        let mut played = Played::new(false);
        played.with(Trouble::Crash(at));
        assert!(crashes(&mut played, |played| drop(try_run(played))), "{at}");
        played.with(Trouble::None);
        assert_eq!(put_right(&mut played), [Outcome::PutBack], "{at}");
        assert!(played.is_as_first(), "{at}");
    }
    // Behind the last write too: the record says from the first one on whose it is.
    let mut played = Played::new(false);
    try_run(&mut played).expect("it goes");
    assert!(on_vfio(&played));
    assert_eq!(put_right(&mut played), [Outcome::PutBack]);
    assert!(played.is_as_first());
}

#[test]
fn a_run_gives_back_what_it_took_and_no_more() {
    let mut played = Played::new(false);
    // The boot's configuration has the sound on VFIO.
    let link = "sys/bus/pci/devices/0000:01:00.1/driver";
    played.built.remove(link);
    played.built.link(link, "../../../../bus/pci/drivers/vfio-pci");
    played.built.file("sys/bus/pci/drivers/vfio-pci/bind", "");
    assert_eq!(try_run(&mut played).expect("it goes").changes.len(), 1);
    let (root, records) = (played.root(), store(&played));
    put_back_run(&root, &mut played, &records, GPU).expect("it comes back");
    assert_eq!(played.driver(GPU).as_deref(), Some("nvidia"));
    assert_eq!(played.driver(AUDIO).as_deref(), Some("vfio-pci"));
    assert!(records.records().expect("records").is_empty());
}

#[test]
fn machines_that_cannot_are_told_why() {
    let mut played = Played::new(false);
    played.has_vfio = false;
    played
        .built
        .file("lib/modules/6.1.0/modules.dep", "kernel/drivers/net/e1000e.ko:\n");
    let fault = try_bind(&mut played).expect_err("no VFIO");
    assert!(
        fault.code == Code::VmHost && fault.message.contains("has no module vfio_pci"),
        "{fault:?}"
    );

    let mut played = Played::new(false);
    played.broken = Some("vfio-pci");
    let fault = try_bind(&mut played).expect_err("it does not bind");
    assert!(
        fault.message.contains("is on no driver, not on vfio-pci"),
        "{fault:?}"
    );
    assert!(played.is_as_first());

    let played = Played::new(false);
    let make = |address| Plan::make(&played.root(), address, &Consent::default()).expect_err(address);
    assert_eq!(make("0000:09:00.0").code, Code::UnknownDevice);
    assert!(make("0000:00:01.0").message.contains("is a bridge"));
    assert!(make(AUDIO).message.contains("is no GPU"));
    for address in [GPU, AUDIO] {
        played
            .built
            .remove(&format!("sys/bus/pci/devices/{address}/iommu_group"));
    }
    let fault = Plan::make(&played.root(), GPU, &Consent::default()).expect_err("no IOMMU");
    assert!(
        fault.code == Code::VmHost && fault.message.contains("the IOMMU is off"),
        "{fault:?}"
    );
}

#[test]
fn what_the_boot_configuration_gave_to_vfio_stays_there_and_is_told() {
    let mut played = Played::new(false);
    played.vfio_ids = true;
    for address in [GPU, AUDIO] {
        let link = format!("sys/bus/pci/devices/{address}/driver");
        played.built.remove(&link);
        played.built.link(&link, "../../../../bus/pci/drivers/vfio-pci");
    }
    played.built.file("sys/bus/pci/drivers/vfio-pci/bind", "");
    assert_eq!(state(&played), State::Bound);
    let fault = try_unbind(&mut played).expect_err("VFIO takes it again");
    assert!(fault.causes[0].contains("vfio-pci.ids"), "{fault:?}");
    assert_eq!(played.driver(AUDIO).as_deref(), Some("snd_hda_intel"));
}

#[test]
fn a_half_bound_group_is_made_whole() {
    let mut played = Played::new(false);
    try_bind(&mut played).expect("it goes");
    // Another tool gave the sound back.
    let link = "sys/bus/pci/devices/0000:01:00.1/driver";
    played.built.remove(link);
    played
        .built
        .link(link, "../../../../bus/pci/drivers/snd_hda_intel");
    assert_eq!(state(&played), State::Half);
    assert_eq!(try_bind(&mut played).expect("it goes").changes.len(), 1);
    assert!(on_vfio(&played));
    try_unbind(&mut played).expect("it comes back");
    assert!(played.is_as_first(), "the first drivers of both are known");
}

#[test]
fn a_driver_of_a_card_s_own_is_chosen() {
    let mut played = Played::new(false);
    played.built.file(
        "lib/modules/6.1.0/modules.alias",
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\nalias vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* own_vfio_pci\n",
    );
    played.built.file(
        "lib/modules/6.1.0/modules.dep",
        "kernel/a/vfio-pci.ko:\nkernel/a/own-vfio-pci.ko:\n",
    );
    played
        .built
        .function_file(AUDIO, "modalias", "pci:v000010DEd000022BAsv0sd0bc04sc03i00\n");
    let plan = try_bind(&mut played).expect("it goes");
    assert_eq!(plan.modules, ["own_vfio_pci", "vfio_pci"]);
    assert_eq!(played.driver(GPU).as_deref(), Some("own_vfio_pci"));
    assert_eq!(played.driver(AUDIO).as_deref(), Some("vfio-pci"));
    try_unbind(&mut played).expect("it comes back");
    assert!(played.is_as_first());
}

#[test]
fn records_that_another_user_could_write_are_not_believed() {
    let mut played = Played::new(false);
    try_bind(&mut played).expect("it goes");
    let folder = played.folder.path().join("var/lib/divvy/vm");
    let record = folder.join("0000:01:00.0.json");
    let text = std::fs::read_to_string(&record).expect("a record");
    // A path in the place of an address.
    std::fs::write(&record, text.replace("0000:01:00.1", "../../x")).expect("written");
    let fault = store(&played).records().expect_err("no address");
    assert_eq!(fault.code, Code::VmBind);
    // A link.
    let aside = played.folder.path().join("aside");
    std::fs::write(&aside, &text).expect("written");
    std::fs::remove_file(&record).expect("removed");
    symlink(&aside, &record).expect("a link");
    store(&played).records().expect_err("a link");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    let fault = Store::open(played.folder.path()).expect_err("all users can write it");
    assert!(fault.causes[0].contains("another user could write"), "{fault:?}");
    // A folder that is a link.
    let other = Played::new(false);
    std::fs::create_dir_all(other.folder.path().join("var")).expect("a folder");
    symlink(played.folder.path(), other.folder.path().join("var/lib")).expect("a link");
    Store::open(other.folder.path()).expect_err("a link");
}
