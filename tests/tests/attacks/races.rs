//! Names and folders that change while the agent and its helper work: whatever a user may replace is a link to root's files for
//! half of the time. Nothing outside changes, and nothing that runs ends.
//!
//! Each of the agent's rounds is a command, so there are some hundreds beside ten thousands of the racers'. The agent's unit
//! test `swaps_of_links_in_mid_operation_change_nothing_outside` makes ten thousand with the same operations on files.

use std::time::{Duration, Instant};

use divvy_tests::host::finish;
use divvy_tests::hostile::Hostile;
use divvy_tests::processes;
use divvy_tests::system::System;

use super::rounds::rounds;

#[test]
fn links_around_everything_that_users_reach_change_nothing_outside() {
    let Some(system) = System::new() else { return };
    let (alice, bob, mallory) = (&system.users.alice, &system.users.bob, &system.users.mallory);
    let (rounds, seconds) = rounds();
    let file = system.victim("shadow");
    let folder = system.folder().join("secret");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("a mode");
    let kept = system.victim("secret/attach.sock");
    let ids = [
        system.slice_of(alice, "alices", "1GiB"),
        system.slice_of(bob, "bobs", "1GiB"),
    ];
    let mut names: Vec<String> = [
        "agent.sock",
        "keep.sock",
        "slices",
        "boxes",
        "stages",
        "containers",
        "mps",
        "queue.json",
    ]
    .map(str::to_owned)
    .to_vec();
    for id in &ids {
        for place in [
            "slices/ID",
            "slices/ID.json",
            "slices/ID/attach.sock",
            "slices/ID/control.sock",
            "slices/ID/box",
            "boxes/ID",
            "boxes/ID/attach.sock",
            "containers/ID",
        ] {
            names.push(place.replace("ID", id));
        }
    }
    // A program of bob's, in the middle of all this.
    let program = Hostile::start(&mut system.divvy_as(
        bob,
        [
            "run",
            "--slice",
            "bobs",
            "--",
            "/bin/sh",
            "-c",
            "echo runs; sleep 600",
        ],
    ));
    assert_eq!(program.line().as_deref(), Some("runs"));
    let racers = [
        (alice, file.path()),
        (alice, folder.as_path()),
        (mallory, file.path()),
    ]
    .map(|(user, victim)| {
        let mut churn = system.attacker_as(user, ["churn"]);
        churn
            .arg(system.run_directory())
            .arg(victim)
            .arg(seconds.to_string())
            .args(&names);
        Hostile::start(&mut churn)
    });
    let (begin, mut done) = (Instant::now(), 0);
    while done < rounds && begin.elapsed() < Duration::from_secs(seconds) {
        for (user, words) in [
            (alice, &["slice", "create", "more", "--memory", "100MiB"][..]),
            (alice, &["resize", "more", "--memory", "200MiB"]),
            (bob, &["resize", "bobs", "--memory", "2GiB"]),
            (alice, &["run", "--memory", "100MiB", "--", "true"]),
            (alice, &["slice", "delete", "more", "--yes", "--grace", "100ms"]),
        ] {
            // Alice's own slices, which she broke, may fail. What she touches of bob's may not: that is looked at
            // below.
            let _done = finish(&mut system.divvy_as(user, words.iter().copied()));
            done += 1;
            file.is_unharmed();
            kept.is_unharmed();
        }
    }
    for racer in racers {
        let said = racer.rest().join(" ");
        println!("{said}");
        let tried = said
            .split_whitespace()
            .next()
            .and_then(|word| word.parse::<u64>().ok());
        assert!(
            tried.is_some_and(|tried| tried >= rounds),
            "links were to be tried: {said}"
        );
    }
    println!("{done} rounds of the agent's");
    assert!(done >= 5, "the agent was to work meanwhile");
    let inside: Vec<_> = std::fs::read_dir(&folder).expect("a folder").flatten().collect();
    assert_eq!(inside.len(), 1, "something was made in root's folder: {inside:?}");
    let mode = std::fs::metadata(&folder).expect("there");
    assert_eq!(
        (
            std::os::unix::fs::MetadataExt::mode(&mode) & 0o7777,
            std::os::unix::fs::MetadataExt::uid(&mode)
        ),
        (0o700, 0),
        "root's folder"
    );
    assert!(processes::is_alive(program.pid()), "bob's program ended");
    let resized = finish(&mut system.divvy_as(bob, ["resize", "bobs", "--memory", "3GiB"]));
    assert!(resized.status.success(), "{resized:?}");
    assert_eq!(system.limit_seen_by(bob, &system.id_of("bobs")), 3 << 30);
    drop(program);
    system.holds();
}
