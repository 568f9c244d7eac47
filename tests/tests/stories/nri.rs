//! `divvy container nri` under containerd 1.7, spoken to as a kubelet does: a pod's annotations are the only request.

use std::path::Path;

use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::kubelet::{Kubelet, launched_plugin};
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};

use crate::containers::image;

const SLEEPS: [&str; 2] = ["/bin/sleep", "infinity"];

#[test]
fn a_pods_annotation_keeps_its_containers_to_one_slice() {
    let host = Host::new();
    let image = image(&host);
    let Some(kubelet) = Kubelet::new(&host, &image) else {
        return;
    };
    let _plugin = kubelet.plugin();
    let pod = kubelet.pod("train", &[("divvy.dev/memory", "1GiB")]);
    let (first_id, mut first) = kubelet.tenant(&pod, "first");
    let (_, mut second) = kubelet.tenant(&pod, "second");
    assert_eq!((first.memory(), second.memory()), ((GIB, GIB), (GIB, GIB)));
    assert_eq!(first.allocate(700 * MIB), Ok(()));
    assert!(
        second.allocate(700 * MIB).is_err(),
        "the limit is of both together"
    );
    assert_eq!(second.allocate(200 * MIB), Ok(()));
    let shown = host.slices();
    assert_eq!((shown.len(), shown[0].memory_used_bytes), (1, 900 * MIB));
    assert!(shown[0].name.starts_with("train-"), "{}", shown[0].name);
    // A program that is opened later is inside as well.
    let seen = kubelet.exec(
        &first_id,
        &["/bin/sh", "-c", "ls /run/divvy; cat /etc/ld.so.preload"],
    );
    assert!(seen.contains("slice") && seen.contains("libcuda.so.1"), "{seen}");
    // A killed program gives its memory back; the slice is the pod's.
    kubelet.kill(&first_id);
    until("its memory is back", || {
        (host.slices()[0].memory_used_bytes == 200 * MIB).then_some(())
    });
    drop(first);
    assert_eq!(second.allocate(700 * MIB), Ok(()));
    kubelet.remove(&pod);
    drop(second);
    until("the slice is gone", || host.slices().is_empty().then_some(()));
}

#[test]
fn containers_of_a_pod_have_limits_of_their_own() {
    let host = Host::new();
    let image = image(&host);
    let Some(kubelet) = Kubelet::new(&host, &image) else {
        return;
    };
    let _plugin = kubelet.plugin();
    let annotations = [
        ("memory.divvy.dev/container.small", "1GiB"),
        ("memory.divvy.dev/container.large", "2GiB"),
        ("compute.divvy.dev/container.large", "40%"),
    ];
    let pod = kubelet.pod("train", &annotations);
    let (small_id, mut small) = kubelet.tenant(&pod, "small");
    let (_, mut large) = kubelet.tenant(&pod, "large");
    assert_eq!((small.memory().1, large.memory().1), (GIB, 2 * GIB));
    assert_eq!(large.allocate(1900 * MIB), Ok(()));
    assert_eq!(small.allocate(900 * MIB), Ok(()));
    assert!(small.allocate(200 * MIB).is_err() && large.allocate(200 * MIB).is_err());
    let names: Vec<String> = host.slices().into_iter().map(|slice| slice.name).collect();
    assert!(
        names.iter().any(|name| name.starts_with("train.small-")),
        "{names:?}"
    );
    assert!(
        names.iter().any(|name| name.starts_with("train.large-")),
        "{names:?}"
    );
    // A container whose name no limit was given for has nothing of it.
    let beside = kubelet.container(&pod, "beside", &[], &SLEEPS).expect("made");
    kubelet.start(&beside).expect("started");
    assert_eq!(kubelet.exec(&beside, &["/bin/ls", "/run"]), "");
    // A slice of a container's own ends with it, and the other's stays.
    kubelet.stop(&small_id);
    until("the slice is gone", || (host.slices().len() == 1).then_some(()));
    assert_eq!(large.memory().1, 2 * GIB);
    kubelet.remove(&pod);
    until("the slices are gone", || host.slices().is_empty().then_some(()));
}

#[test]
fn what_cannot_be_given_is_the_containers_status_and_nothing_is_left() {
    let host = Host::new();
    let image = image(&host);
    // Debian's ldconfig is linked statically.
    image.file(Path::new("/sbin/ldconfig"), "/bin/static");
    let Some(kubelet) = Kubelet::new(&host, &image) else {
        return;
    };
    let plugin = kubelet.plugin();
    let long = "9".repeat(100_000);
    let name = format!("memory.divvy.dev/container.{}", "x".repeat(40));
    for (key, value, part) in [
        ("divvy.dev/memory", "900GiB", "D0013"),
        ("divvy.dev/memory", "much", "D0002"),
        ("divvy.dev/memory", "-1GiB", "D0002"),
        ("divvy.dev/memory", "99999999999999999999GiB", "D0002"),
        ("divvy.dev/memory", &long, "D0063"),
        ("divvy.dev/memroy", "1GiB", "D0063"),
        ("divvy.dev/device", "7", "D0011"),
        ("divvy.dev/compute", "0%", "D0002"),
        ("divvy.dev/slice", "unknown", "D0020"),
        ("divvy.dev/slice", "../../etc", "D0020"),
    ] {
        let pod = kubelet.pod("train", &[(key, value), (&name, "1GiB")]);
        let said = kubelet
            .container(&pod, "main", &[], &SLEEPS)
            .expect_err("refused");
        assert!(said.contains(part) && said.len() < 2000, "{part}: {said}");
        assert!(host.slices().is_empty(), "{part}");
        kubelet.remove(&pod);
    }
    // Nor does one pod get into another's slice by its name.
    let victim = kubelet.pod("victim", &[("divvy.dev/memory", "1GiB")]);
    let id = kubelet.container(&victim, "main", &[], &SLEEPS).expect("made");
    kubelet.start(&id).expect("started");
    let name = host.slices().remove(0).name;
    let thief = kubelet.pod("thief", &[("divvy.dev/slice", &name)]);
    let said = kubelet
        .container(&thief, "main", &[], &SLEEPS)
        .expect_err("refused");
    assert!(said.contains("D0027"), "{said}");
    for pod in [&victim, &thief] {
        kubelet.remove(pod);
    }
    // A slice that was made for pods of one namespace admits those, and no others.
    for (namespace, admitted) in [("--pods=default", true), ("--pods=train", false)] {
        let words = ["slice", "create", "shared", "--memory", "1GiB", namespace];
        succeeded(&finish(&mut host.divvy(words)));
        let pod = kubelet.pod("joins", &[("divvy.dev/slice", "shared")]);
        let made = kubelet.container(&pod, "main", &[], &SLEEPS);
        match admitted {
            true => drop(made.expect("admitted")),
            false => assert!(made.expect_err("refused").contains("D0033")),
        }
        kubelet.remove(&pod);
        succeeded(&finish(&mut host.divvy(["slice", "delete", "shared", "--yes"])));
    }
    until("the victim's slice is gone", || {
        host.slices().is_empty().then_some(())
    });
    // A static program is found when it stands in its root, and never runs.
    let annotations = ["static", "cover", "main"].map(|name| format!("memory.divvy.dev/container.{name}"));
    let pod = kubelet.pod("train", &annotations.each_ref().map(|key| (&**key, "1GiB")));
    let id = kubelet
        .container(&pod, "static", &[], &["/bin/static", "--version"])
        .expect("made");
    let said = kubelet.start(&id).expect_err("refused");
    assert!(said.contains("D0022") && said.contains("statically"), "{said}");
    until("nothing is left", || host.slices().is_empty().then_some(()));
    // Nor does what would cover the limiter.
    let folder = host.folder().join("cover");
    std::fs::create_dir(&folder).expect("a folder");
    for place in [
        "/run/divvy/slice/",
        "/var/run/divvy/slice",
        "/run/divvy/slice/deeper",
    ] {
        let said = kubelet
            .container(&pod, "cover", &[(&folder, place)], &SLEEPS)
            .expect_err("refused");
        assert!(said.contains("D0063"), "{place}: {said}");
        assert!(host.slices().is_empty(), "{place}");
    }
    // The plugin has lived through it all.
    assert_eq!(plugin.said().matches("serving").count(), 1, "{}", plugin.said());
    let id = kubelet.container(&pod, "main", &[], &SLEEPS).expect("made");
    kubelet.start(&id).expect("started");
    assert_eq!(host.slices().len(), 1);
}

#[test]
fn a_pod_without_annotations_is_the_runtimes_alone() {
    let host = Host::new();
    let image = image(&host);
    let Some(kubelet) = Kubelet::new(&host, &image) else {
        return;
    };
    let _plugin = kubelet.plugin();
    let pod = kubelet.pod("plain", &[("example.com/memory", "1GiB"), ("team", "divvy.dev")]);
    let id = kubelet.container(&pod, "main", &[], &SLEEPS).expect("made");
    kubelet.start(&id).expect("started");
    let seen = kubelet.exec(&id, &["/bin/ls", "/run", "/etc"]);
    assert!(seen.ends_with("/run:\n") && !seen.contains("preload"), "{seen}");
    assert!(host.slices().is_empty());
}

#[test]
fn a_plugin_that_is_killed_is_replaced_by_the_next() {
    let host = Host::new();
    let image = image(&host);
    let Some(kubelet) = Kubelet::new(&host, &image) else {
        return;
    };
    let plugin = kubelet.plugin();
    let annotations = [
        ("memory.divvy.dev/container.stays", "1GiB"),
        ("memory.divvy.dev/container.ends", "2GiB"),
        ("memory.divvy.dev/container.late", "3GiB"),
    ];
    let pod = kubelet.pod("train", &annotations);
    let (_, mut stays) = kubelet.tenant(&pod, "stays");
    let (ends, tenant) = kubelet.tenant(&pod, "ends");
    assert_eq!(stays.allocate(700 * MIB), Ok(()));
    let shared = kubelet.pod("shared", &[("divvy.dev/memory", "4GiB")]);
    let of_shared = kubelet.container(&shared, "main", &[], &SLEEPS).expect("made");
    kubelet.start(&of_shared).expect("started");
    assert_eq!(host.slices().len(), 3);
    plugin.kill();
    // Limits hold while no plugin is there.
    assert!(stays.allocate(700 * MIB).is_err());
    kubelet.stop(&ends);
    drop(tenant);
    kubelet.remove(&shared);
    // A container that is made meanwhile has no device, and hence no limit to bypass.
    let late = kubelet.container(&pod, "late", &[], &SLEEPS).expect("made");
    kubelet.start(&late).expect("started");
    assert_eq!(kubelet.exec(&late, &["/bin/ls", "/run"]), "");
    let plugin = kubelet.plugin();
    assert!(
        plugin.said().contains("default/train late was made while"),
        "{}",
        plugin.said()
    );
    until("unused slices are gone", || {
        (host.slices().len() == 1).then_some(())
    });
    assert_eq!(host.slices()[0].memory_used_bytes, 700 * MIB);
    assert!(stays.allocate(700 * MIB).is_err());
    // The next one ends what the last one made.
    kubelet.remove(&pod);
    drop(stays);
    until("the slice is gone", || host.slices().is_empty().then_some(()));
}

#[test]
fn containerd_starts_the_plugin_by_itself() {
    let host = Host::new();
    let image = image(&host);
    let Some(kubelet) = Kubelet::with_plugins(&host, &image, |folder| launched_plugin(&host, folder)) else {
        return;
    };
    let pod = kubelet.pod("train", &[("divvy.dev/memory", "1GiB")]);
    let (_, mut tenant) = kubelet.tenant(&pod, "main");
    assert_eq!(tenant.memory(), (GIB, GIB));
    kubelet.remove(&pod);
    until("the slice is gone", || host.slices().is_empty().then_some(()));
}

#[test]
fn without_a_runtime_it_says_so() {
    let host = Host::new();
    let output = finish(host.divvy(["nri", "--socket"]).arg(host.folder().join("none")));
    let said = stderr(&output);
    assert!(said.contains("D0049") && said.contains("NRI"), "{said}");
    for words in [["nri", "--index", "1"], ["nri", "--name", "../x"]] {
        let output = finish(&mut host.divvy(words));
        assert_eq!(output.status.code(), Some(2));
    }
    // A descriptor that is none.
    let mut none = host.divvy(["nri"]);
    let output = finish(none.env("NRI_PLUGIN_SOCKET", "99"));
    assert!(stderr(&output).contains("D0049"));
    assert!(host.slices().is_empty());
}
