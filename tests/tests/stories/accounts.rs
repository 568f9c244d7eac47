//! A user with subordinate numbers (`/etc/subuid`) asks as one of them, and has one quota all the same.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use divvy_tests::clients::system_python;
use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::processes;
use divvy_tests::system::System;
use divvy_tests::users::User;
use rustix::process::Signal;
use serde_json::{Value, json};

/// Asks the agent for a slice as a number of a user namespace of its own, once that has users. `divvy` itself would not:
/// inside of the namespace the agent's user has no number.
const ASK: &str = r#"
import ctypes, json, os, socket, sys
number, path, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
error = ctypes.CDLL(None).unshare(0x10000000)
os.write(1, b"%d\n" % (os.getpid() if error == 0 else 0))
sys.stdin.readline()
os.setresgid(number, number, number)
os.setresuid(number, number, number)
body = json.dumps({"request": {"memory": {"bytes": 1 << 30}, "name": name}, "command": [], "lasting": True})
head = "POST /v1/slices HTTP/1.1\r\nHost: divvy\r\nConnection: close\r\nContent-Type: application/json\r\n"
agent = socket.socket(socket.AF_UNIX)
agent.connect(path)
agent.sendall((head + "Content-Length: %d\r\n\r\n" % len(body) + body).encode())
answer = b"".join(iter(lambda: agent.recv(65536), b""))
os.write(1, answer.split(b"\r\n\r\n", 1)[1] + b"\n")
"#;

/// The agent's answer to number `inside` of a user namespace of this user's, whose numbers begin with `first` of the
/// machine's. Nothing where a user may make no such namespace here.
fn ask_as(system: &System, user: &User, first: u32, inside: u32, name: &str) -> Option<Value> {
    let python = system_python()?;
    let mut command = system.command_as(user, python);
    command
        .args(["-c", ASK, &inside.to_string()])
        .arg(system.run_directory().join("agent.sock"))
        .arg(name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("it speaks");
    let pid: u32 = line.trim().parse().expect("a process id");
    let is_mapped = pid != 0;
    if is_mapped {
        // As newuidmap(1) does for what /etc/subuid has.
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{pid}/{map}"), format!("0 {first} 16\n")).expect("mapped");
        }
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"\n").expect("told");
        line.clear();
        output.read_line(&mut line).expect("it answers");
    } else {
        eprintln!("skipped: a user may make no namespace of users here");
        processes::signal(child.id(), Signal::KILL);
    }
    child.wait().expect("it ends");
    is_mapped.then(|| serde_json::from_str(&line).expect("JSON"))
}

#[test]
fn a_user_with_subordinate_numbers_has_one_quota_whichever_it_asks_as() {
    let Some(system) = System::with(&[("DIVVY_USER_SLICES", "2")]) else {
        return;
    };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    // The agent serves already: it sees that the file has changed.
    let first = system.users.give_subordinates(alice);
    system.slice_of(alice, "own", "1GiB");
    let create = |name| ["slice", "create", name, "--memory", "1GiB"];
    let Some(made) = ask_as(&system, alice, first, 7, "second") else {
        return;
    };
    assert_eq!(made["kind"], "CreatedSlice", "{made}");
    let shown = system.json(["inspect", "second"]);
    assert_eq!(
        (&shown["uid"], &shown["account_uid"]),
        (&json!(first + 7), &json!(alice.uid)),
        "{shown}"
    );
    let list = succeeded(&finish(&mut system.divvy(["ps", "-o", "wide"])));
    assert!(list.contains("ACCOUNT"), "{list}");
    let refuses = |number: u32| {
        let refused = ask_as(&system, alice, first, number, "third").expect("as before");
        assert_eq!(refused["code"], "D0017", "{refused}");
        let why = format!(
            "by /etc/subuid user {} counts as user {}",
            first + number,
            alice.uid
        );
        assert_eq!(refused["causes"][1], *why, "{refused}");
    };
    refuses(8);
    refuses(0);
    let refused = finish(&mut system.divvy_as(alice, create("third")));
    assert!(stderr(&refused).contains("D0017"), "{}", stderr(&refused));
    // What counts for a user is not that user's for all that.
    let refused = finish(&mut system.divvy_as(alice, ["slice", "delete", "second"]));
    assert!(stderr(&refused).contains("D0033"), "{}", stderr(&refused));
    system.slice_of(bob, "others", "1GiB");
    // The numbers go, and what is in the slices stays counted.
    system.users.take_subordinates(alice, first);
    refuses(9);
    system.holds();
}
