//! A machine that is not as it should be: an older kernel, a full disk, a user that was removed, a helper that died, slices
//! of an earlier version. Impossible requests are refused in words, and running programs go on.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::users::User;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB, processes};
use rustix::process::Signal;

/// What a command says that must fail.
fn refused(command: &mut Command) -> String {
    let output = finish(command);
    assert!(!output.status.success(), "{command:?} succeeded");
    let said = stderr(&output);
    assert!(said.contains("error[D"), "a sentence with a code: {said}");
    said
}

/// A probe of root's in its lasting slice.
fn joined(system: &System, name: &str) -> Tenant {
    let mut command = system.divvy(["run", "--slice", name, "--"]);
    command.arg(system.program("probe"));
    Tenant::start(command)
}

/// A program of this user's that runs in its lasting slice until it is ended.
fn running(system: &System, user: &User, name: &str) -> Hostile {
    let words = [
        "run",
        "--slice",
        name,
        "--",
        "/bin/sh",
        "-c",
        "echo runs; sleep 600",
    ];
    let program = Hostile::start(&mut system.divvy_as(user, words));
    assert_eq!(program.line().as_deref(), Some("runs"));
    program
}

#[test]
fn on_an_older_kernel_callers_are_known_and_limits_hold() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    system.stop_agent();
    system.start_agent_on_older_kernel();
    let id = system.slice_of(alice, "hers", "1GiB");
    succeeded(&finish(
        &mut system.divvy(["slice", "create", "roots", "--memory", "1GiB"]),
    ));
    let mut tenant = joined(&system, "roots");
    assert_eq!(tenant.allocate(600 * MIB), Ok(()));
    assert!(tenant.allocate(600 * MIB).is_err(), "the limit holds");
    assert_eq!(
        system.slice("roots").processes.len(),
        1,
        "the kernel tells who attached"
    );
    // The kernel still says who calls.
    refused(&mut system.divvy_as(bob, ["resize", "hers", "--memory", "2GiB"]));
    refused(&mut system.divvy_as(bob, ["slice", "delete", &id, "--yes"]));
    assert_eq!(system.limit_seen_by(alice, &id), GIB);
    let mut doctor = system.command(system.program("older-kernel"));
    let said = finish(doctor.arg(system.program("divvy")).arg("doctor"));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.contains("a caller is known by its number and start time"),
        "{said}"
    );
    drop(tenant);
    system.holds();
}

/// A small disk in the place of a folder, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path, size: &str) -> Self {
        let mut mount = Command::new("mount");
        mount
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size},mode=0711"),
                "divvy-test",
            ])
            .arg(folder);
        succeeded(&finish(&mut mount));
        Self(folder.into())
    }

    /// Writes until nothing more fits.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut filler = File::create(&path).expect("a file");
        for bytes in [1 << 20, 4096, 1] {
            let some = vec![0; bytes];
            while filler.write_all(&some).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whatever still runs in it: it goes with the last of that.
        let _gone = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

/// The files directly in a folder of slices.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_full_disk_refuses_new_slices_and_keeps_those_that_are_there() {
    let Some(system) = System::new() else { return };
    system.stop_agent();
    let disk = Disk::mount(&system.run_directory(), "512m");
    chown(
        &disk.0,
        Some(system.users.agent.uid),
        Some(system.users.agent.gid),
    )
    .expect("given away");
    system.start_agent();
    succeeded(&finish(
        &mut system.divvy(["run", "--memory", "64MiB", "--", "true"]),
    ));
    let alice = &system.users.alice;
    succeeded(&finish(
        &mut system.divvy(["slice", "create", "kept", "--memory", "1GiB"]),
    ));
    let id = system.id_of("kept");
    let mut tenant = joined(&system, "kept");
    assert_eq!(tenant.allocate(600 * MIB), Ok(()));
    let slices = disk.0.join("slices");
    let before = names(&slices);
    let record = slices.join(format!("{id}.json"));
    let filler = disk.fill();

    let said = refused(&mut system.divvy_as(alice, ["slice", "create", "more", "--memory", "1GiB"]));
    assert!(said.contains("No space left on device"), "{said}");
    refused(&mut system.divvy_as(alice, ["run", "--memory", "1GiB", "--", "true"]));
    assert_eq!(names(&slices), before, "nothing of them is left behind");
    let known: Vec<String> = system.slices().into_iter().map(|slice| slice.name).collect();
    assert_eq!(known, ["kept"]);
    assert!(tenant.allocate(600 * MIB).is_err(), "the limit holds");
    let text = fs::read_to_string(&record).expect("the record");
    let whole: serde_json::Value = serde_json::from_str(&text).expect("whole");
    assert_eq!(whole["memory_limit_bytes"], GIB);
    // With space again all goes on, in this agent and in the next.
    fs::remove_file(&filler).expect("room");
    system.slice_of(alice, "more", "1GiB");
    system.stop_agent();
    system.start_agent();
    assert!(tenant.allocate(600 * MIB).is_err(), "the limit holds");
    drop(tenant);
    system.holds();
    drop(disk);
}

#[test]
fn a_slice_outlives_the_user_that_was_removed_until_root_deletes_it() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let id = system.slice_of(alice, "hers", "1GiB");
    let program = running(&system, alice, "hers");
    system.users.remove(alice);
    for words in [&["ps"][..], &["inspect", "hers"]] {
        let shown = succeeded(&finish(&mut system.divvy_as(bob, words.iter().copied())));
        assert!(shown.contains("hers"), "{shown}");
    }
    assert_eq!(system.json(["inspect", "hers"])["uid"], alice.uid);
    // An agent that is started then takes it over all the same.
    system.stop_agent();
    system.start_agent();
    assert_eq!(system.limit_seen_by(alice, &id), GIB);
    succeeded(&finish(&mut system.divvy(["kill", "hers", "--yes"])));
    assert_eq!(program.rest(), [""; 0]);
    until("nothing runs in it", || {
        succeeded(&finish(&mut system.divvy(["ps"])));
        finish(&mut system.divvy(["slice", "delete", "hers", "--yes"]))
            .status
            .success()
            .then_some(())
    });
    assert!(system.slices().is_empty());
    system.holds();
}

#[test]
fn an_agent_whose_helper_died_says_so_and_goes_on() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let id = system.slice_of(alice, "hers", "1GiB");
    let program = running(&system, alice, "hers");
    let helper = system
        .agent_tree()
        .into_iter()
        .find(|pid| *pid != system.agent_pid() && processes::user(*pid) == Some(0));
    let helper = helper.expect("root's helper");
    processes::signal(helper, Signal::KILL);
    until("the helper is gone", || {
        (!processes::is_alive(helper)).then_some(())
    });
    // Work that needs root is not done, and the refusal says so.
    let doctor = finish(&mut system.divvy(["doctor"]));
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("it does not answer"), "{doctor}");
    let kill = finish(&mut system.divvy(["kill", "hers", "--yes"]));
    let said = String::from_utf8_lossy(&kill.stdout).into_owned() + &stderr(&kill);
    println!("{said}");
    assert!(
        processes::is_alive(program.pid()),
        "the agent may not end it: {said}"
    );
    assert!(
        !kill.status.success() && said.contains("the helper that does what needs root does not answer"),
        "{said}"
    );
    // Work that needs no root goes on.
    succeeded(&finish(&mut system.divvy_as(bob, ["ps"])));
    system.slice_of(bob, "his", "1GiB");
    succeeded(&finish(
        &mut system.divvy_as(bob, ["run", "--slice", "his", "--", "true"]),
    ));
    assert_eq!(system.limit_seen_by(alice, &id), GIB);
    // It comes back with the agent.
    system.stop_agent();
    system.start_agent();
    succeeded(&finish(&mut system.divvy(["kill", "hers", "--yes"])));
    assert_eq!(program.rest(), [""; 0]);
    system.holds();
}

#[test]
fn a_slice_of_an_older_layout_is_shown_keeps_its_limit_and_is_left_alone() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let id = system.slice_of(alice, "old", "1GiB");
    let page_server = system.json(["inspect", "old"])["page_server_pid"].as_u64();
    let page_server = u32::try_from(page_server.expect("a page server")).expect("a process's number");
    system.stop_agent();
    processes::signal(page_server, Signal::KILL);
    // As versions made it that gave the slice's folder to its user: she listens there herself.
    let folder = system.slice_folder(&id);
    fs::remove_dir_all(&folder).expect("the folder");
    fs::create_dir(&folder).expect("a folder");
    let asked = UnixListener::bind(folder.join("attach.sock")).expect("it listens");
    asked.set_nonblocking(true).expect("a socket");
    for path in [&folder, &folder.join("attach.sock")] {
        chown(path, Some(alice.uid), Some(alice.gid)).expect("given away");
    }
    let facts = |path: &Path| {
        let meta = fs::symlink_metadata(path).expect("there");
        (
            meta.ino(),
            meta.uid(),
            meta.mode(),
            meta.ctime(),
            meta.ctime_nsec(),
        )
    };
    let before = [facts(&folder), facts(&folder.join("attach.sock"))];
    system.start_agent();
    // No program uses it, so the agent would give it other pages, which this folder cannot have.
    until("the agent tried to renew it", || {
        system
            .log_text()
            .contains("cannot make the sockets")
            .then_some(())
    });

    let shown = system.json(["inspect", "old"]);
    assert_eq!(shown["memory_limit_bytes"], GIB);
    let text = shown.to_string();
    assert!(
        text.contains("an earlier version of Divvy made this slice"),
        "{text}"
    );
    let said = refused(&mut system.divvy_as(alice, ["run", "--slice", "old", "--", "true"]));
    println!("{said}");
    succeeded(&finish(&mut system.divvy_as(bob, ["ps"])));
    system.slice_of(bob, "his", "1GiB");
    assert_eq!(
        [facts(&folder), facts(&folder.join("attach.sock"))],
        before,
        "nothing of it was touched"
    );
    assert!(asked.accept().is_err(), "and nothing connected to");
    system.lives();
}
