//! `divvy container oci-runtime` over Debian's runc and crun, under podman: for engines that know no CDI.

use divvy_tests::containerd::Containerd;
use divvy_tests::containers::{Image, Podman};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};

use crate::containers::image;

const BY_VARIABLES: [(&str, &str); 1] = [("DIVVY_CONTAINER_REQUESTS", "variables")];

fn starts(podman: &Podman<'_>, settings: &[(&str, &str)], flags: &[&str], image: &Image) -> Tenant {
    let flags = [&["-i"], flags].concat();
    Tenant::start_in_container(podman.run_over_wrapper(settings, &flags, image, &["/bin/probe"]))
}

#[test]
fn an_annotation_asks_for_a_slice_that_ends_with_the_container() {
    for runtime in ["runc", "crun"] {
        let host = Host::new();
        let Some(podman) = Podman::over(&host, runtime) else {
            return;
        };
        let image = image(&host);
        let flags = ["--name", "box", "--annotation", "divvy.dev/memory=1GiB"];
        let mut tenant = starts(&podman, &[], &flags, &image);
        assert_eq!(tenant.memory(), (GIB, GIB));
        assert_eq!(tenant.allocate(700 * MIB), Ok(()));
        assert!(tenant.allocate(700 * MIB).is_err());
        // A shell opened later is inside as well: nothing of it is a variable.
        let words = ["exec", "-i", "box", "/usr/bin/env", "-i", "/bin/probe"];
        let mut later = Tenant::start_in_container(podman.over_wrapper(&[], &words));
        assert!(later.allocate(700 * MIB).is_err());
        assert!(later.end().success());
        let shown = host.json(["ps"])["items"][0].clone();
        assert_eq!(shown["containers"][0]["name"], "box", "{shown}");
        assert!(tenant.end().success());
        until("the slice is gone", || host.slices().is_empty().then_some(()));
    }
}

#[test]
fn a_container_is_let_into_a_lasting_slice_which_stays() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let create = |name: &str, pods: &[&str]| {
        let words = [&["slice", "create", name, "--memory", "1GiB"], pods].concat();
        succeeded(&finish(&mut host.divvy(words)));
    };
    create("alice", &["--pods"]);
    let mut tenant = starts(&podman, &[], &["--annotation", "divvy.dev/slice=alice"], &image);
    assert_eq!(tenant.memory().1, GIB);
    assert!(tenant.end().success());
    assert_eq!(host.slices().len(), 1);
    // Those that were not made for containers admit none, by name or by the beginning of an id.
    create("bob", &[]);
    create("carol", &["--pods=train"]);
    let beginning: String = host.json(["inspect", "alice"])["id"]
        .as_str()
        .expect("an id")
        .chars()
        .take(2)
        .collect();
    for (named, code) in [("bob", "D0033"), ("carol", "D0033"), (&*beginning, "D0020")] {
        let annotation = format!("divvy.dev/slice={named}");
        let flags = ["--annotation", &*annotation];
        let refused = finish(&mut podman.run_over_wrapper(&[], &flags, &image, &["/bin/sleep", "0"]));
        let said = stderr(&refused);
        assert!(
            !refused.status.success() && said.contains(code),
            "{named}: {said}"
        );
    }
    assert_eq!(host.slices().len(), 3);
}

/// An emulated device computes on the host's processors: a container gets one where the host has it, and makes none.
#[test]
fn a_container_makes_no_emulated_device() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = [
        "--annotation",
        "divvy.dev/memory=1GiB",
        "--annotation",
        "divvy.dev/device=emulated:t4",
    ];
    let run = |emulated: &str| {
        let settings = [
            ("DIVVY_EMULATED", emulated),
            ("DIVVY_CONTAINER_REQUESTS", "variables"),
        ];
        finish(&mut podman.run_over_wrapper(&settings, &flags, &image, &["/bin/sleep", "0"]))
    };
    let refused = run("");
    let said = stderr(&refused);
    assert!(
        !refused.status.success() && said.contains("D0033") && said.contains("emulated:t4"),
        "{said}"
    );
    assert!(host.slices().is_empty());
    let allowed = run("h100");
    assert!(allowed.status.success(), "{}", stderr(&allowed));
}

/// What stands in an image's configuration asks for nothing: `NVIDIA_VISIBLE_DEVICES=all` is in most CUDA images.
#[test]
fn an_unprivileged_request_for_all_devices_by_environment_gives_none() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let asks = [
        "--env",
        "NVIDIA_VISIBLE_DEVICES=all",
        "--env",
        "AMD_VISIBLE_DEVICES=all",
        "--env",
        "DIVVY_MEMORY=1GiB",
    ];
    let script = ["/bin/sh", "-c", "ls /run /dev; cat /etc/ld.so.preload || true"];
    let by_default = [("DIVVY_CONTAINER_REQUESTS", "annotations")];
    let seen = succeeded(&finish(&mut podman.run_over_wrapper(
        &by_default,
        &asks,
        &image,
        &script,
    )));
    for sign in ["divvy", "nvidia", "kfd", "dri"] {
        assert!(!seen.contains(sign), "{sign}: {seen}");
    }
    assert!(host.slices().is_empty());
    // Podman takes annotations from images too. A limit that does not count must not be none: it says so.
    let annotation = ["--annotation", "divvy.dev/memory=1GiB"];
    let managed = [&annotation[..], &["--annotation", "io.container.manager=other"]].concat();
    for flags in [&annotation[..], &managed] {
        let refused = finish(&mut podman.run_over_wrapper(&by_default, flags, &image, &script));
        let said = stderr(&refused);
        let says_why = said.contains("takes annotations from images too");
        assert!(!refused.status.success() && says_why, "{said}");
    }
    assert!(host.slices().is_empty());
    // Where the administrator allows it, they count.
    let slice = ["--env", "DIVVY_MEMORY=1GiB"];
    let mut tenant = starts(&podman, &BY_VARIABLES, &slice, &image);
    assert_eq!(tenant.memory().1, GIB);
    assert!(tenant.end().success());
}

#[test]
fn what_cannot_be_given_is_said_by_the_engine_and_nothing_is_left() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    for (flags, part) in [
        (&["--annotation", "divvy.dev/memory=900GiB"][..], "D0013"),
        (&["--annotation", "divvy.dev/memory=much"], "D0002"),
        (&["--annotation", "divvy.dev/slice=none"], "D0020"),
        (&["--env", "NVIDIA_VISIBLE_DEVICES=0"], "D0011"),
    ] {
        let output = finish(&mut podman.run_over_wrapper(&BY_VARIABLES, flags, &image, &["/bin/probe"]));
        assert!(!output.status.success(), "{part}");
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
        assert!(host.slices().is_empty(), "{part}");
    }
    // A program that is not there: the runtime fails after the slice was made.
    let flags = ["--annotation", "divvy.dev/memory=1GiB"];
    let output = finish(&mut podman.run_over_wrapper(&[], &flags, &image, &["/bin/none-such"]));
    assert!(!output.status.success());
    until("nothing is left", || host.slices().is_empty().then_some(()));
    // A container that asks for nothing is the runtime's alone.
    let plain = finish(&mut podman.run_over_wrapper(&[], &[], &image, &["/bin/sh", "-c", "echo ran"]));
    assert_eq!(succeeded(&plain), "ran\n");
}

#[test]
fn containerd_without_cdi_gives_containers_slices_through_the_wrapper() {
    let host = Host::new();
    let Some(containerd) = Containerd::new(&host) else {
        return;
    };
    let image = image(&host);
    let flags = ["--annotation", "divvy.dev/memory=1GiB"];
    let mut tenant = Tenant::start_in_container(containerd.run(&flags, &image, "box", &["/bin/probe"]));
    assert_eq!(tenant.memory(), (GIB, GIB));
    assert!(tenant.allocate(2 * GIB).is_err());
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    assert_eq!(host.slices()[0].memory_used_bytes, 700 * MIB);
    assert!(tenant.end().success());
    until("the slice is gone", || host.slices().is_empty().then_some(()));
    // One that asks for nothing gets nothing.
    let mut plain = containerd.run(&[], &image, "plain", &["/bin/ls", "/run"]);
    assert_eq!(succeeded(&finish(&mut plain)), "");
}
