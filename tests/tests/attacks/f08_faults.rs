//! F8. Seen on the old code: memory that a hostile keeper handed over was asked for its size first and for its seals after.
//! One that shrank in between ended the root agent by SIGBUS. So did a container that made its emulated device's page
//! shorter, which the agent had mapped.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use divvy_tests::clients::{attacker, strace};
use divvy_tests::containers::Podman;
use divvy_tests::host::{finish, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::processes;
use divvy_tests::system::System;
use divvy_tests::wait::until;

use super::containers::{image, slice};
use super::rounds::rounds;

/// So many looks at hostile memory, half of them for each pause of the keeper's.
const LOOKS: u64 = 20;

/// Waits until each thread of the agent is watched by strace.
fn until_traced(system: &System) {
    let agent = system.agent_pid();
    until("the agent is watched", || {
        processes::is_traced(agent).then_some(())
    });
}

/// The agent, with a kernel that takes its time over fcntl.
fn slowed(strace: &Path, system: &System) -> Hostile {
    let mut slow = Command::new(strace);
    slow.args([
        "-f",
        "-qq",
        "-e",
        "trace=fcntl",
        "-e",
        "inject=fcntl:delay_enter=40000",
        "-o",
        "/dev/null",
    ])
    .arg(format!("--attach={}", system.agent_pid()))
    .stderr(Stdio::null());
    Hostile::start(&mut slow)
}

/// A kernel that takes its time over fcntl, which asks for seals, gives the keeper all the time that it needs. That leaves
/// no time for ten thousand rounds: `f08_a_look_at_memory_that_shrinks_meanwhile_faults_nobody` makes them with the same code.
#[test]
fn f08_a_keeper_that_shrinks_its_memory_while_it_is_looked_at_ends_no_agent() {
    let Some(strace) = strace() else { return };
    let Some(system) = System::new() else { return };
    let slow = slowed(&strace, &system);
    until_traced(&system);
    let mut fault = system.attacker_as(&system.users.alice, ["fault", &LOOKS.to_string(), "30"]);
    let said = succeeded(&finish(&mut fault));
    println!("{said}");
    let looks = said
        .lines()
        .find_map(|line| line.strip_prefix("looks ")?.parse().ok());
    assert!(
        looks.is_some_and(|looks: u64| looks >= LOOKS),
        "the agent was to look at hostile memory {LOOKS} times: {said}"
    );
    drop(slow);
    system.lives();
    system.holds();
}

/// The same by a keeper that is its user's own `divvy run`, whose sockets that user takes over, and an agent that asks for
/// pages because it was started anew.
#[test]
fn f08_a_keeper_that_is_taken_over_by_its_user_ends_no_agent() {
    let Some(strace) = strace() else { return };
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    // How soon the look comes to its second step depends on how the agent was built.
    let thieves = ["10", "60"].map(|pause| {
        let name = format!("hers-{pause}");
        let thief = Hostile::start(&mut system.attacker_as(alice, ["steal", &name, pause]));
        println!("{}", thief.line().unwrap_or_default());
        thief
    });
    system.stop_agent();
    system.start_agent();
    let slow = slowed(&strace, &system);
    until_traced(&system);
    assert!(system.script_as(alice, "touch go", &[]).status.success());
    for thief in &thieves {
        assert_eq!(thief.line().as_deref(), Some("looked at"), "its memory was");
    }
    system.lives();
    drop(slow);
    system.lives();
    drop(thieves);
    system.holds();
}

/// Ten thousand times the look itself, against memory that shrinks and is sealed meanwhile.
#[test]
fn f08_a_look_at_memory_that_shrinks_meanwhile_faults_nobody() {
    let (rounds, seconds) = rounds();
    let mut race = Command::new(attacker());
    race.args(["race-pages", &rounds.to_string(), &seconds.to_string()]);
    let output = finish(&mut race);
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(
        output.status.success(),
        "the look ended its own process: {}",
        output.status
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let mut counts = said
        .split_whitespace()
        .filter_map(|word| word.parse::<u64>().ok());
    let (done, shrunk) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
    assert!(done >= 10_000, "{said}");
    assert!(shrunk >= 1000, "the memory was to shrink: {said}");
}

#[test]
fn f08_a_container_that_shortens_its_devices_page_ends_nothing_of_the_hosts() {
    let Some(system) = System::new() else { return };
    let Some(podman) = Podman::new(&system) else {
        return;
    };
    let (image, device) = (image(&system), slice(&system, &podman, "own", "1GiB"));
    let other = slice(&system, &podman, "others", "1GiB");
    let (_, seconds) = rounds();
    let attack = format!("echo info | /bin/probe; exec /bin/attacker shorten /run/divvy/device {seconds}");
    // With the engine's usual rights: without them a container's root may not open the page of an agent's own user.
    let flags = ["--device", &device];
    let hostile = Hostile::start(&mut podman.run(&flags, &image, &["/bin/sh", "-c", &attack]));
    assert!(hostile.line().is_some(), "its device works");
    let mut asked = 0;
    while hostile
        .line_within(Duration::from_millis(100))
        .is_none_or(|line| !line.contains("rounds"))
    {
        asked += 1;
        system.lives();
        let devices = finish(&mut system.divvy(["devices"]));
        assert!(
            devices.status.code().is_some(),
            "a container ended `divvy devices`: {}",
            devices.status
        );
        if asked > 60 {
            break;
        }
    }
    // It stays short: what looks at it now, and a program of another container.
    for _ in 0..4 {
        system.lives();
        succeeded(&finish(&mut system.divvy(["devices"])));
    }
    let flags = ["--device", &other];
    let said = finish(&mut podman.run(&flags, &image, &["/bin/sh", "-c", "echo info | /bin/probe"]));
    assert!(
        String::from_utf8_lossy(&said.stdout).contains("total_bytes"),
        "another container's program: {said:?}"
    );
    system.holds();
}
