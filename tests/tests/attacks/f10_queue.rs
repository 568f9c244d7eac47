//! F10. Seen on the old code: every request for a place in the queue made one more, without a bound, with up to 1 MB of
//! command each. All were written again at each change. After 155 places the agent had 577 MB, and a file of 163 MB in
//! /run.

use divvy_tests::host::{finish, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::processes;
use divvy_tests::system::System;

#[test]
fn f10_one_user_neither_fills_the_queue_nor_the_agents_memory() {
    const PLACES: usize = 24;
    let Some(system) = System::new() else { return };
    succeeded(&finish(
        &mut system.divvy(["slice", "create", "big", "--memory", "70GiB"]),
    ));
    let memory = |system: &System| -> u64 { system.agent_tree().into_iter().map(processes::resident).sum() };
    let before = memory(&system);
    let flood = Hostile::start(
        &mut system.attacker_as(&system.users.alice, ["queue", &PLACES.to_string(), "300000"]),
    );
    println!("{}", flood.line().unwrap_or_default());
    let stored = size(&system.run_directory());
    let grown = memory(&system).saturating_sub(before);
    println!("{stored} bytes of state, {grown} bytes more of memory");
    assert!(
        stored < 1 << 20,
        "one user made the agent keep {stored} bytes in its run directory"
    );
    assert!(grown < 40 << 20, "one user made the agent {grown} bytes larger");
    // bob gets a place all the same: behind alice, and served when there is space.
    let waiting = Hostile::start(&mut system.divvy_as(
        &system.users.bob,
        ["run", "--wait=30s", "--memory", "20GiB", "--", "echo", "served"],
    ));
    drop(flood);
    succeeded(&finish(&mut system.divvy(["slice", "delete", "big"])));
    assert_eq!(waiting.line().as_deref(), Some("served"));
    system.holds();
}

/// Bytes of the files directly in the run directory.
fn size(run: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(run).expect("a folder").flatten();
    let files = entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(std::fs::Metadata::is_file);
    files.map(|meta| meta.len()).sum()
}
