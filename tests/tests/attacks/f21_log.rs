//! F21. Read in the old code: each request that changes something, or is refused, wrote a line into a log in /run, as often as a
//! caller liked.

use divvy_tests::host::finish;
use divvy_tests::system::System;

#[test]
fn f21_one_callers_requests_do_not_fill_the_log() {
    const REQUESTS: usize = 3000;
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let id = system.slice_of(alice, "own", "1GiB");
    let lines = || {
        let own = std::fs::read_to_string(system.run_directory().join("agent.log")).unwrap_or_default();
        own.lines().count() + system.log_text().lines().count()
    };
    let before = lines();
    let path = format!("/v1/slices/{id}");
    for (method, path, body) in [
        ("PATCH", path.as_str(), r#"{"memory":{"bytes":1073741824}}"#),
        ("PATCH", path.as_str(), r#"{"memory":{"bytes":1073741824000}}"#),
    ] {
        let half = (REQUESTS / 2).to_string();
        let said = finish(&mut system.attacker_as(alice, ["requests", &half, method, path, body]));
        println!("{}", String::from_utf8_lossy(&said.stdout));
    }
    let grown = lines() - before;
    println!("{grown} lines");
    assert!(
        grown < REQUESTS / 5,
        "{REQUESTS} requests of one caller made {grown} lines of log"
    );
    system.holds();
}
