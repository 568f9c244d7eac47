//! F15. Seen on the old code: a ledger with 2,000 made-up numbers of processes cost the agent a quarter of a core, and each
//! `divvy ps` half a second, all under the lock that every request takes.

use std::time::{Duration, Instant};

use divvy_tests::hostile::Hostile;
use divvy_tests::processes;
use divvy_tests::system::System;

#[test]
fn f15_a_crowd_that_is_not_there_costs_the_others_nothing() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let id = system.slice_of(alice, "own", "1GiB");
    // Processor time of the agent in two seconds, in hundredths of a second.
    let used = || {
        let sum = || -> u64 { system.agent_tree().into_iter().map(processes::ticks).sum() };
        let before = sum();
        std::thread::sleep(Duration::from_secs(2));
        sum() - before
    };
    let ps = || {
        let begin = Instant::now();
        assert!(system.answers(&system.users.bob, Duration::from_secs(20)));
        begin.elapsed()
    };
    let (idle, quick) = (used(), ps().min(ps()));
    let mut forge = system.attacker_as(alice, ["forge"]);
    let forger = Hostile::start(
        forge
            .arg(system.slice_folder(&id).join("attach.sock"))
            .arg("1000"),
    );
    println!("{}", forger.line().unwrap_or_default());
    let (busy, slow) = (used(), ps().min(ps()));
    println!("idle {idle} ticks, then {busy}; `divvy ps` {quick:?}, then {slow:?}");
    // At most a fifth of a core more, and some patience on a machine that others share.
    assert!(
        busy <= idle + 40,
        "the agent uses {busy} hundredths of a second in two, {idle} before"
    );
    assert!(
        slow < quick + Duration::from_millis(400),
        "`divvy ps` took {slow:?}, {quick:?} before"
    );
    drop(forger);
    system.holds();
}
