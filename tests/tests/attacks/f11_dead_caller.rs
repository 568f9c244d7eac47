//! F11. Seen on the old code: in `divvy run --memory 100MiB` a child connected to the agent and died, and its parent spoke over
//! that connection. The caller's number had no parent any more, so it was "in no slice": the slice became one of 10 GiB, and
//! another one of 5 GiB was made outside.

use std::process::Stdio;

use divvy_tests::host::{finish, stderr};
use divvy_tests::system::System;
use divvy_tests::{GIB, MIB};

use super::rounds::rounds;

/// A foreign user's requests have a pace, and each round is a process or two: ten thousand take minutes. The agent's unit test
/// `connections_of_the_dead_decide_nothing` makes them with the same code.
#[test]
fn f11_a_caller_that_is_dead_decides_nothing() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let (rounds, seconds) = rounds();
    let (rounds, seconds) = (rounds.to_string(), seconds.to_string());
    let mut command = system.divvy_as(alice, ["run", "--name", "small", "--memory", "100MiB", "--"]);
    command
        .arg(system.program("attacker"))
        .args(["bypass", &rounds, &seconds]);
    // Its input stays open until the slice has been looked at.
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let said = std::io::BufRead::lines(output)
        .map_while(Result::ok)
        .find(|line| {
            println!("{line}");
            line.starts_with("by the dead")
        });
    let slices = system.slices();
    drop(child.stdin.take());
    let _reaped = child.wait();
    assert!(said.is_some(), "the attack was made");
    let small = slices
        .iter()
        .find(|slice| slice.name == "small")
        .expect("it is there");
    assert_eq!(
        small.memory_limit_bytes,
        100 * MIB,
        "from inside a slice its limit was changed"
    );
    let outside: Vec<&str> = slices
        .iter()
        .map(|slice| slice.name.as_str())
        .filter(|name| name.starts_with("outside"))
        .collect();
    assert_eq!(outside, [""; 0], "from inside a slice others were made outside");
    system.holds();
}

/// The same at the slice's own socket: no process is taken for the dead one, nothing that serves ends.
#[test]
fn f11_an_attach_by_a_peer_that_is_dead_ends_nothing() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let id = system.slice_of(alice, "own", "1GiB");
    let (rounds, _) = rounds();
    let seconds = 60;
    let mut attack = system.attacker_as(alice, ["attach-by-the-dead"]);
    attack
        .arg(system.slice_folder(&id).join("attach.sock"))
        .args([rounds.to_string(), seconds.to_string()]);
    let said = finish(&mut attack);
    assert!(said.status.success(), "{}", stderr(&said));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    println!("{said}");
    let done = said
        .split_whitespace()
        .next()
        .and_then(|word| word.parse::<u64>().ok());
    assert!(
        done.is_some_and(|done| done >= rounds),
        "rounds were to be made: {said}"
    );
    assert_eq!(system.limit_seen_by(alice, &id), GIB);
    assert!(
        system.slice("own").processes.is_empty(),
        "none of them is in the slice"
    );
    system.holds();
}
