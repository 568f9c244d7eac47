//! F22. Seen on the old code: root's run directory was 0755 and the slices' records 0644. The lists showed every user
//! of the machine the full command lines of all others.

use std::io::BufRead;
use std::process::Stdio;

use divvy_tests::host::{finish, succeeded};
use divvy_tests::system::System;
use divvy_tests::wait::until;

const SECRET: &str = "token-of-alice";

#[test]
fn f22_no_user_reads_anothers_command_line() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let script = "echo runs; exec sleep 600";
    let mut run = system.divvy_as(
        alice,
        ["run", "--name", "hers", "--memory", "1GiB", "--", "/bin/sh", "-c"],
    );
    run.args([script, SECRET])
        .stdout(Stdio::piped())
        .stdin(Stdio::piped());
    let mut run = run.spawn().expect("it starts");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(run.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "runs\n");
    // She and root see it.
    let seen = |output: std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    until("alice sees her own", || {
        let own = succeeded(&finish(&mut system.divvy_as(alice, ["ps", "-o", "json"])));
        own.contains(SECRET).then_some(())
    });
    let id = system.id_of("hers");
    for path in [
        "/v1/slices".to_owned(),
        format!("/v1/slices/{id}"),
        "/metrics".to_owned(),
    ] {
        let told = seen(finish(&mut system.attacker_as(bob, ["http", "GET", &path, ""])));
        assert!(!told.contains(SECRET), "{path} tells bob: {told}");
    }
    let told = seen(finish(
        &mut system.attacker_as(bob, ["http", "GET", "/v1/events?since=0&follow=false", ""]),
    ));
    assert!(!told.contains(SECRET), "events tell bob: {told}");
    let run_directory = system.run_directory();
    let read = seen(system.script_as(bob, "cat \"$1\"/*.json \"$1\"/slices/*.json", &[&run_directory]));
    assert_eq!(read, "", "bob reads records");
    let listed = seen(system.script_as(bob, "ls \"$1\"", &[&run_directory]));
    assert_eq!(listed, "", "bob lists the run directory");
    let _ended = run.kill();
    let _reaped = run.wait();
    system.holds();
}
