//! Containers that end and come back, and slices that go with their containers whichever process was killed.

use divvy_tests::containers::Podman;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB, processes};
use rustix::process::Signal;

use crate::containers::{image, slice};

const SLEEPS: [&str; 2] = ["/bin/sleep", "600"];

fn is_inside(podman: &Podman<'_>) {
    let words = ["exec", "-i", "box", "/bin/probe"];
    let mut tenant = Tenant::start_in_container(podman.command(&words));
    assert_eq!(tenant.memory().1, GIB);
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    assert!(tenant.allocate(700 * MIB).is_err());
    assert!(tenant.end().success());
}

fn does(podman: &Podman<'_>, words: &[&str]) {
    succeeded(&finish(&mut podman.command(words)));
}

fn no_slice_is_left(host: &Host) {
    until("the slice is gone", || host.slices().is_empty().then_some(()));
}

/// The processes of this host that run `divvy VERB`.
fn of_divvy(host: &Host, verb: &str) -> Vec<u32> {
    let mut all = processes::with_environment("DIVVY_RUN_DIR", &host.run_directory());
    all.retain(|pid| {
        let words = processes::arguments(*pid);
        words.get(1).is_some_and(|word| word == verb) && words[0].ends_with("divvy")
    });
    all
}

#[test]
fn a_container_in_the_background_keeps_its_slice_until_it_is_removed() {
    for runtime in ["runc", "crun"] {
        let host = Host::new();
        let Some(podman) = Podman::over(&host, runtime) else {
            return;
        };
        let image = image(&host);
        let flags = ["-d", "--name", "box", "--memory", "1GiB"];
        succeeded(&finish(&mut podman.kept_by_divvy(&flags, &image, &SLEEPS)));
        is_inside(&podman);
        does(&podman, &["restart", "--time", "0", "box"]);
        is_inside(&podman);
        does(&podman, &["stop", "--time", "0", "box"]);
        until("the helper has gone", || {
            of_divvy(&host, "attend").is_empty().then_some(())
        });
        assert_eq!(host.slices().len(), 1, "it can be started again");
        host.kill_agent();
        does(&podman, &["start", "box"]);
        is_inside(&podman);
        does(&podman, &["rm", "--force", "--time", "0", "box"]);
        // Its name is free at once.
        succeeded(&finish(&mut podman.kept_by_divvy(&flags, &image, &SLEEPS)));
        is_inside(&podman);
        does(&podman, &["rm", "--force", "--time", "0", "box"]);
        no_slice_is_left(&host);
        let files = std::fs::read_dir(podman.cdi()).expect("a folder").count();
        assert_eq!(files, 0, "and so is its CDI file");
    }
}

/// Whether it has within ten seconds.
fn ends_soon(mut ended: impl FnMut() -> bool) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        ended()
    })
}

#[test]
fn a_container_in_the_foreground_may_be_restarted_while_it_runs() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = ["--name", "box", "--memory", "1GiB"];
    let mut run = podman
        .kept_by_divvy(&flags, &image, &SLEEPS)
        .spawn()
        .expect("it starts");
    until("the container runs", || {
        let asked = finish(&mut podman.command(&["inspect", "--format", "{{.State.Running}}", "box"]));
        (asked.stdout == b"true\n").then_some(())
    });
    does(&podman, &["restart", "--time", "0", "box"]);
    // Podman 4.3's client may wait for ever where its container is restarted under it.
    let ended = || run.try_wait().expect("asked").is_some();
    if !ends_soon(ended) {
        let children = format!("/proc/{0}/task/{0}/children", run.id());
        let children = std::fs::read_to_string(children).expect("its children");
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        for client in children.filter(|pid| processes::arguments(*pid)[0].ends_with("podman")) {
            processes::signal(client, Signal::KILL);
        }
    }
    run.wait().expect("its client has gone");
    is_inside(&podman);
    does(&podman, &["kill", "box"]);
    no_slice_is_left(&host);
}

#[test]
fn a_container_over_the_wrapper_gets_a_new_slice_when_it_comes_back() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = ["-d", "--name", "box", "--annotation", "divvy.dev/memory=1GiB"];
    succeeded(&finish(&mut podman.kept_over_wrapper(&flags, &image, &SLEEPS)));
    is_inside(&podman);
    let first = host.slices()[0].name.clone();
    let over = |words: &[&str]| succeeded(&finish(&mut podman.over_wrapper(&[], words)));
    over(&["restart", "--time", "0", "box"]);
    is_inside(&podman);
    assert_eq!(host.slices().len(), 1, "the first one's has ended: {first}");
    over(&["stop", "--time", "0", "box"]);
    no_slice_is_left(&host);
    over(&["start", "box"]);
    is_inside(&podman);
}

#[test]
fn a_slice_made_for_containers_serves_them_as_often_as_they_come_back() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "stays", "1GiB"));
    let flags = ["-d", "--name", "box", "--device", &device];
    succeeded(&finish(&mut podman.kept(&flags, &image, &SLEEPS)));
    does(&podman, &["restart", "--time", "0", "box"]);
    is_inside(&podman);
    does(&podman, &["rm", "--force", "--time", "0", "box"]);
    assert_eq!(host.slices().len(), 1);
}

#[test]
fn a_slice_goes_with_its_container_though_all_of_ours_were_killed() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = ["-i", "--name", "box", "--memory", "1GiB"];
    let mut tenant = Tenant::start_in_container(podman.run_by_divvy(&flags, &image, &["/bin/probe"]));
    assert_eq!(tenant.allocate(100 * MIB), Ok(()));
    until("the slice goes with the container's folder", || {
        host.json(["ps"])["items"][0]["lifetime_anchor"]["path"]
            .is_string()
            .then_some(())
    });
    for verb in ["podman", "attend"] {
        for pid in of_divvy(&host, verb) {
            processes::signal(pid, Signal::KILL);
        }
    }
    tenant.wait();
    assert_eq!(
        host.slice("box").memory_used_bytes,
        100 * MIB,
        "the container lives"
    );
    does(&podman, &["kill", "box"]);
    no_slice_is_left(&host);
}

/// A wrapper that is killed, or a `delete` that goes past it: what it made goes with the container's first process, or with
/// the wrapper where the container came to nothing.
#[test]
fn no_slice_of_the_wrappers_is_left_behind() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = ["-d", "--name", "box", "--annotation", "divvy.dev/memory=1GiB"];
    succeeded(&finish(&mut podman.kept_over_wrapper(&flags, &image, &SLEEPS)));
    is_inside(&podman);
    let shown = host.json(["ps"])["items"][0].clone();
    let first = shown["lifetime_anchor"]["process"]["pid"]
        .as_u64()
        .expect("a process");
    let first = u32::try_from(first).expect("a number");
    assert_eq!(processes::arguments(first)[..2], SLEEPS);
    // The wrapper is not called: the runtime below deletes it.
    let id = finish(&mut podman.command(&["inspect", "--format", "{{.Id}}", "box"]));
    let id = succeeded(&id);
    succeeded(&finish(host.command("runc").args([
        "delete",
        "--force",
        id.trim(),
    ])));
    no_slice_is_left(&host);

    let killer = host.folder().join("killer");
    std::fs::write(
        &killer,
        "#!/bin/sh\ncase \" $* \" in *' create '*) kill -9 $PPID;; esac\nexit 1\n",
    )
    .expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&killer, mode).expect("a mode");
    let settings = [("DIVVY_OCI_RUNTIME", killer.to_str().expect("UTF-8"))];
    let flags = ["--annotation", "divvy.dev/memory=1GiB"];
    let failed = finish(&mut podman.run_over_wrapper(&settings, &flags, &image, &SLEEPS));
    assert!(!failed.status.success(), "{}", stderr(&failed));
    no_slice_is_left(&host);
}
