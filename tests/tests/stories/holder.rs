//! The holder of an emulated device's pages: it dies, its agent dies, and what programs hold of the device is known all the
//! same.

use divvy_tests::build::binaries;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{MIB, processes};
use rustix::process::Signal;

/// The holder of this host; none where none lives.
fn holder(host: &Host) -> Option<u32> {
    let mut all = processes::with_environment("DIVVY_RUN_DIR", &host.run_directory());
    all.retain(|pid| {
        processes::arguments(*pid).get(1..3) == Some(&["keep".to_owned(), "emulated".to_owned()])
    });
    assert!(all.len() <= 1, "a host has one holder: {all:?}");
    all.pop()
}

/// What is in use on the host's device, in MiB.
fn used(host: &Host) -> u64 {
    let devices = host.json(["devices"]);
    devices["items"][0]["memory_used_bytes"]
        .as_u64()
        .expect("a figure")
        / MIB
}

#[test]
fn a_holder_that_is_killed_is_replaced_and_programs_that_run_lose_nothing() {
    let host = Host::new();
    let mut first = host.probe("first", "1GiB");
    assert_eq!(first.allocate(64 * MIB), Ok(()));
    let killed = holder(&host).expect("a holder");
    processes::signal(killed, Signal::KILL);
    assert_eq!(first.allocate(32 * MIB), Ok(()));
    assert!(first.copies());
    // It has its pages from another holder, and they are the same.
    let mut second = host.probe("second", "1GiB");
    assert_eq!(second.allocate(128 * MIB), Ok(()));
    assert_eq!(used(&host), 224);
    let other = holder(&host).expect("another holder");
    assert_ne!(other, killed);
    // A restarted agent takes it over.
    host.kill_agent();
    let mut third = host.probe("third", "1GiB");
    assert_eq!(third.allocate(256 * MIB), Ok(()));
    assert_eq!((used(&host), holder(&host)), (480, Some(other)));
    first.free();
    // What the dead held comes back, whichever holder gave them their slot.
    second.signal(Signal::KILL);
    until("it is given back", || (used(&host) == 320).then_some(()));
    assert!(third.copies());
}

#[test]
fn a_holder_stays_while_programs_run_and_leaves_after_its_agent_and_the_last() {
    let host = Host::new();
    let mut tenant = host.probe("tenant", "1GiB");
    assert_eq!(tenant.allocate(64 * MIB), Ok(()));
    let own = holder(&host).expect("a holder");
    host.kill_agent();
    let folder = host.folder().join("driver");
    std::fs::create_dir(&folder).expect("made");
    let driver = binaries().join("libdivvy_emulated_cuda.so");
    std::os::unix::fs::symlink(driver, folder.join("libcuda.so.1")).expect("linked");
    let outside = || {
        let mut command = host.command(divvy_tests::clients::probe());
        command.env("LD_LIBRARY_PATH", &folder);
        Tenant::start(command)
    };
    // No agent runs, and this program finds what the other holds.
    let mut look = outside();
    let (free, total) = look.memory();
    assert_eq!((total - free) / MIB, 64);
    assert_eq!(holder(&host), Some(own));
    drop((look, tenant));
    until("the holder has left", || holder(&host).is_none().then_some(()));
    // Now there is neither: the device is files of the user's own.
    let mut look = outside();
    assert_eq!(look.allocate(96 * MIB), Ok(()));
    assert_eq!(holder(&host), None);
    // Slices beside it are on the same pages, and a container, which would get none of them, is refused.
    let mut slice = host.probe("slice", "1GiB");
    assert_eq!(slice.allocate(32 * MIB), Ok(()));
    assert_eq!(used(&host), 128);
    let cdi = host.folder().join("cdi");
    std::fs::create_dir(&cdi).expect("made");
    let share = || {
        let mut make = host.divvy(["cdi", "slice", "--memory", "1GiB", "--name", "box", "--directory"]);
        finish(make.arg(&cdi))
    };
    let refused = share();
    let said = stderr(&refused);
    assert!(
        !refused.status.success() && said.contains("started without an agent"),
        "{said}"
    );
    drop((look, slice));
    until("they are gone", || (used(&host) == 0).then_some(()));
    until("it can be shared", || share().status.success().then_some(()));
    assert!(holder(&host).is_some());
    succeeded(&finish(&mut host.divvy(["slice", "delete", "--yes", "box"])));
}
