//! What the agent and its helper do by path, as the kernel sees it: a day on a machine of several users, under strace. By path
//! they may change what lies below the run directory, where no user has a folder. Everything else goes by descriptors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy_tests::clients::strace;
use divvy_tests::containers::Podman;
use divvy_tests::host::{finish, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::processes::is_traced;
use divvy_tests::system::System;
use divvy_tests::wait::until;

use super::containers::slice;

/// What changes something that has a name.
const CALLS: &str = "trace=open,openat,openat2,creat,truncate,chmod,fchmodat,?fchmodat2,chown,lchown,fchownat,rename,renameat,\
                     renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,symlink,symlinkat,link,linkat,mknod,mknodat";

#[test]
fn the_agent_and_its_helper_change_nothing_by_path_outside_their_own_folders() {
    let Some(strace) = strace() else { return };
    let Some(system) = System::new() else { return };
    let Some(podman) = Podman::new(&system) else {
        return;
    };
    let traces = system.folder().join("traces");
    fs::create_dir(&traces).expect("a folder");
    let traced = system.agent_tree();
    let mut watch = Command::new(strace);
    watch
        .args(["-ff", "-qq", "-s", "4096", "-e", CALLS, "-o"])
        .arg(traces.join("of"));
    for pid in &traced {
        watch.arg(format!("--attach={pid}"));
    }
    let watch = Hostile::start(watch.stderr(Stdio::null()));
    until("the agent is watched", || {
        traced.iter().all(|pid| is_traced(*pid)).then_some(())
    });

    day(&system, &podman);

    let given = foreign_folders(&system);
    drop(watch);
    let own = system.run_directory();
    let (mut calls, mut found) = (0, Vec::new());
    for entry in fs::read_dir(&traces).expect("a folder").flatten() {
        for line in fs::read_to_string(entry.path()).expect("a trace").lines() {
            for path in changed_by_path(line) {
                calls += 1;
                let path = Path::new(&path);
                let is_own = path.starts_with(&own) && !given.iter().any(|given| path.starts_with(given));
                if !is_own && !is_the_kernels(path) {
                    found.push(line.to_owned());
                }
            }
        }
    }
    println!("{calls} changes by path");
    assert!(calls > 10, "the agent was watched while it worked");
    found.sort();
    found.dedup();
    assert!(
        found.is_empty(),
        "by path, outside the agent's own folders: {found:#?}"
    );
    system.holds();
}

/// What a machine of several users does in a day. Each keeps a slice for the evening, when it is looked whose the folders are.
fn day(system: &System, podman: &Podman<'_>) {
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    for (user, name) in [(alice, "alices"), (bob, "bobs")] {
        system.slice_of(user, name, "1GiB");
        system.slice_of(user, &format!("{name}-second"), "1GiB");
        for words in [
            &["run", "--slice", name, "--", "true"][..],
            &["run", "--memory", "500MiB", "--", "true"],
            &["resize", name, "--memory", "2GiB"],
            &["ps"],
        ] {
            succeeded(&finish(&mut system.divvy_as(user, words.iter().copied())));
        }
    }
    let program = Hostile::start(&mut system.divvy_as(
        alice,
        [
            "run",
            "--slice",
            "alices-second",
            "--",
            "/bin/sh",
            "-c",
            "echo runs; sleep 600",
        ],
    ));
    assert_eq!(program.line().as_deref(), Some("runs"));
    succeeded(&finish(
        &mut system.divvy_as(alice, ["kill", "alices-second", "--yes"]),
    ));
    drop(program);
    for (user, name) in [(alice, "alices-second"), (bob, "bobs-second")] {
        succeeded(&finish(
            &mut system.divvy_as(user, ["slice", "delete", name, "--yes"]),
        ));
    }
    slice(system, podman, "boxed", "1GiB");
    succeeded(&finish(&mut system.divvy(["slice", "delete", "boxed", "--yes"])));
}

/// The folders below the run directory that are neither root's nor the agent's user's.
fn foreign_folders(system: &System) -> Vec<PathBuf> {
    let found = system.walk();
    let paths = found.iter().filter_map(|words| words.split(" is user ").next());
    paths.map(PathBuf::from).filter(|path| path.is_dir()).collect()
}

/// The kernel's own, and what swallows everything.
fn is_the_kernels(path: &Path) -> bool {
    path.starts_with("/proc") || path == Path::new("/dev/null")
}

/// The paths that this call changed something by: not one that failed, not one that only reads, and not what is relative to
/// a descriptor.
fn changed_by_path(line: &str) -> Vec<String> {
    let Some((call, outcome)) = line.rsplit_once(" = ") else {
        return Vec::new();
    };
    let Some((name, arguments)) = call.split_once('(') else {
        return Vec::new();
    };
    let reads = !["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"]
        .iter()
        .any(|flag| arguments.contains(flag));
    if outcome.starts_with('-') || outcome.starts_with('?') || (name.starts_with("open") && reads) {
        return Vec::new();
    }
    let arguments = split(arguments);
    let mut paths = Vec::new();
    for (at, argument) in arguments.iter().enumerate() {
        let Some(path) = argument.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
            continue;
        };
        // A link's text is no path that is walked.
        if name.starts_with("symlink") && at == 0 {
            continue;
        }
        let before = at.checked_sub(1).and_then(|before| arguments.get(before));
        let by_descriptor = name.contains("at")
            && name != "creat"
            && name != "truncate"
            && before.is_some_and(|before| before.parse::<u32>().is_ok());
        if !by_descriptor || path.starts_with('/') {
            paths.push(path.to_owned());
        }
    }
    paths
}

/// The arguments of a call. A comma in a name is none between arguments.
fn split(arguments: &str) -> Vec<String> {
    let (mut all, mut quoted, mut escaped) = (vec![String::new()], false, false);
    for letter in arguments.trim_end_matches(')').chars() {
        let is_quote = letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        quoted ^= is_quote;
        if letter == ',' && !quoted {
            all.push(String::new());
        } else if let Some(last) = all.last_mut()
            && (letter != ' ' || quoted)
        {
            last.push(letter);
        }
    }
    all
}

#[test]
fn a_trace_is_read_as_it_is_meant() {
    for (line, paths) in [
        (
            r#"openat(AT_FDCWD, "/etc/passwd", O_RDONLY|O_CLOEXEC) = 3"#,
            &[][..],
        ),
        (
            r#"openat(AT_FDCWD, "/etc/passwd", O_WRONLY|O_CREAT, 0600) = 3"#,
            &["/etc/passwd"],
        ),
        (r#"openat(5, "record", O_WRONLY|O_CREAT, 0600) = 3"#, &[]),
        (r#"openat(5, "/etc/passwd", O_WRONLY) = 3"#, &["/etc/passwd"]),
        (r#"chown("/run/x, y", 1000, -1) = 0"#, &["/run/x, y"]),
        (
            r#"chown("/run/x", 1000, -1) = -1 EPERM (Operation not permitted)"#,
            &[],
        ),
        (r#"renameat2(5, "a", 6, "b", RENAME_NOREPLACE) = 0"#, &[]),
        (r#"rename("/a", "/b") = 0"#, &["/a", "/b"]),
        (r#"symlinkat("/etc/shadow", 5, "link") = 0"#, &[]),
        (r#"unlinkat(AT_FDCWD, "/a", 0) = 0"#, &["/a"]),
    ] {
        assert_eq!(changed_by_path(line), paths, "{line}");
    }
}
