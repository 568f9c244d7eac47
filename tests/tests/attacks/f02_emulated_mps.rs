//! F2. Seen on the old code: the agent, as root, kept the emulated MPS daemon's state in the folder of pipes, which was
//! the user's. A link at `partitions` made root write the file that it led to. A FIFO at `control` blocked the thread,
//! and with it the lock for which every other user's device waited.

use std::time::Duration;

use divvy_tests::host::finish;
use divvy_tests::system::{System, ends_within};
use divvy_tests::users::User;

const PARTITIONED: [&str; 7] = [
    "--memory",
    "1GiB",
    "--share",
    "mps",
    "--compute",
    "10%",
    "--cap=hard",
];

/// A slice with a partition of MPS's, of this user.
fn partition(system: &System, user: &User, name: &str) -> std::process::Command {
    system.divvy_as(user, ["slice", "create", name].into_iter().chain(PARTITIONED))
}

#[test]
fn f02_root_writes_nothing_through_links_in_a_users_folder_of_pipes() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    // Where it is refused there is no folder to attack, and the scenario shows nothing: it has to be admitted.
    let first = finish(&mut partition(&system, alice, "one"));
    assert!(
        first.status.success(),
        "{}",
        String::from_utf8_lossy(&first.stderr)
    );
    let victim = system.victim("shadow");
    let made = system.folder().join("ld.so.preload");
    let attack = "for pipe in \"$1\"/mps/user-*/*/pipe; do cd \"$pipe\" || continue; rm -f partitions; \
                  ln -s \"$2\" partitions; done; true";
    let run = system.run_directory();
    for target in [victim.path(), &made] {
        system.script_as(alice, attack, &[&run, target]);
        let _asked = finish(&mut partition(
            &system,
            alice,
            &format!("two-{}", target.as_os_str().len()),
        ));
        assert!(
            !made.exists(),
            "root made {}: {:?}",
            made.display(),
            std::fs::read_to_string(&made)
        );
        victim.is_unharmed();
    }
    system.holds();
}

#[test]
fn f02_a_fifo_in_a_users_folder_of_pipes_delays_no_other_user() {
    let Some(system) = System::with(&[("DIVVY_EMULATED", "h100*2")]) else {
        return;
    };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    assert!(
        finish(partition(&system, alice, "one").args(["--device", "0"]))
            .status
            .success()
    );
    let attack = "for pipe in \"$1\"/mps/user-*/*/pipe; do cd \"$pipe\" || continue; rm -f control; mkfifo control; \
                  done; true";
    system.script_as(alice, attack, &[&system.run_directory()]);
    let mut second = partition(&system, alice, "two");
    let _held = ends_within(second.args(["--device", "0"]), Duration::from_secs(1));
    assert!(
        ends_within(
            partition(&system, bob, "bobs").args(["--device", "1"]),
            Duration::from_secs(5)
        ),
        "bob's slice waits for alice's FIFO"
    );
    system.holds();
}
