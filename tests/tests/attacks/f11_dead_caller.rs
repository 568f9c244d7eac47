//! F11. Seen on the old code: in `divvy run --memory 100MiB` a child connected to the agent and died, and its parent spoke over
//! that connection. The caller's number had no parent any more, so it was "in no slice": the slice became one of 10 GiB, and
//! another one of 5 GiB was made outside.

use std::process::Stdio;

use divvy_tests::MIB;
use divvy_tests::system::System;

use crate::rounds::rounds;

#[test]
fn f11_a_caller_that_is_dead_decides_nothing() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    // Each round is two callers that die, and of two processes each.
    let (rounds, _) = rounds();
    let rounds = (rounds / 200).to_string();
    let mut command = system.divvy_as(alice, ["run", "--name", "small", "--memory", "100MiB", "--"]);
    command.arg(system.program("attacker")).args(["escape", &rounds]);
    // Its input stays open until the slice has been looked at.
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
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
    let small = slices.iter().find(|slice| slice.name == "small").expect("it is there");
    assert_eq!(small.memory_limit_bytes, 100 * MIB, "from inside a slice its limit was changed");
    let outside: Vec<&str> = slices
        .iter()
        .map(|slice| slice.name.as_str())
        .filter(|name| name.starts_with("outside"))
        .collect();
    assert_eq!(outside, [""; 0], "from inside a slice others were made outside");
    system.holds();
}
