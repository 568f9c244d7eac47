//! A user with subordinate numbers (`/etc/subuid`) asks as one of them, and has one quota all the same.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Output, Stdio};

use divvy_tests::clients::unshare;
use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::system::System;
use divvy_tests::users::User;
use serde_json::json;

/// Runs `divvy` as number `inside` of a user namespace of this user's, whose numbers begin with `first` of the machine's.
/// Nothing where a user may make no such namespace here.
fn as_subordinate(
    system: &System,
    user: &User,
    first: u32,
    inside: u32,
    arguments: &[&str],
) -> Option<Output> {
    let inside = inside.to_string();
    let script = "echo $$; read mapped; number=$1; shift; \
                  exec setpriv --reuid $number --regid $number --clear-groups -- \"$@\"";
    let mut command = system.command_as(user, "unshare");
    command
        .args(["--user", "sh", "-c", script, "sh", &inside])
        .arg(system.program("divvy"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    output.read_line(&mut said).expect("it speaks");
    let Ok(pid) = said.trim().parse::<u32>() else {
        eprintln!("skipped: a user may make no namespace of users here");
        child.wait().expect("it ends");
        return None;
    };
    // As newuidmap(1) does for what /etc/subuid has.
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{map}"), format!("0 {first} 16\n")).expect("mapped");
    }
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"\n").expect("told");
    let mut ended = child.wait_with_output().expect("it ends");
    std::io::Read::read_to_end(&mut output, &mut ended.stdout).expect("read");
    Some(ended)
}

#[test]
fn a_user_with_subordinate_numbers_has_one_quota_whichever_it_asks_as() {
    let Some(system) = System::with(&[("DIVVY_USER_SLICES", "2")]) else {
        return;
    };
    if unshare().is_none() {
        return;
    }
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    // The agent serves already: it sees that the file has changed.
    let first = system.users.give_subordinates(alice);
    system.slice_of(alice, "own", "1GiB");
    let create = |name| ["slice", "create", name, "--memory", "1GiB"];
    let Some(made) = as_subordinate(&system, alice, first, 7, &create("second")) else {
        return;
    };
    succeeded(&made);
    let shown = system.json(["inspect", "second"]);
    assert_eq!(
        (&shown["uid"], &shown["account_uid"]),
        (&json!(first + 7), &json!(alice.uid)),
        "{shown}"
    );
    let list = succeeded(&finish(&mut system.divvy(["ps", "-o", "wide"])));
    assert!(list.contains("ACCOUNT"), "{list}");
    for number in [8, 0] {
        let refused = as_subordinate(&system, alice, first, number, &create("third")).expect("as before");
        let (said, number) = (stderr(&refused), first + number);
        assert!(said.contains("D0017"), "{said}");
        let why = format!("by /etc/subuid user {number} counts as user {}", alice.uid);
        assert!(said.contains(&why), "{said}");
    }
    let refused = finish(&mut system.divvy_as(alice, create("third")));
    assert!(stderr(&refused).contains("D0017"), "{}", stderr(&refused));
    // What counts for a user is not that user's for all that.
    let refused = finish(&mut system.divvy_as(alice, ["slice", "delete", "second"]));
    assert!(stderr(&refused).contains("D0033"), "{}", stderr(&refused));
    system.slice_of(bob, "others", "1GiB");
    // The numbers go, and what is in the slices stays counted.
    system.users.take_subordinates(alice, first);
    let refused = as_subordinate(&system, alice, first, 9, &create("third")).expect("as before");
    assert!(stderr(&refused).contains("D0017"), "{}", stderr(&refused));
    system.holds();
}
