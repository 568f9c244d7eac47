//! `divvy podman run` over Debian's podman: a slice for one container, which ends with it.

use divvy_tests::containers::{Image, Podman};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB, processes};
use rustix::process::Signal;

use crate::containers::image;

fn starts(podman: &Podman<'_>, flags: &[&str], image: &Image) -> Tenant {
    let flags = [&["-i"], flags].concat();
    Tenant::start_in_container(podman.run_by_divvy(&flags, image, &["/bin/probe"]))
}

fn no_slice_is_left(host: &Host, podman: &Podman<'_>) {
    until("the slice is gone", || host.slices().is_empty().then_some(()));
    let files = std::fs::read_dir(podman.cdi()).expect("a folder").count();
    assert_eq!(files, 0, "and so is its CDI file");
}

#[test]
fn a_container_gets_a_slice_of_its_own_that_ends_with_it() {
    for runtime in ["runc", "crun"] {
        let host = Host::new();
        let Some(podman) = Podman::over(&host, runtime) else {
            return;
        };
        let image = image(&host);
        // Both memories: the slice's, and the host's with the engine's own letter.
        let flags = ["--memory", "1GiB", "-m", "3g", "--name", "train", "--compute=30%"];
        let mut tenant = starts(&podman, &flags, &image);
        assert_eq!(tenant.memory(), (GIB, GIB));
        assert_eq!(tenant.allocate(700 * MIB), Ok(()));
        assert!(tenant.allocate(700 * MIB).is_err());
        let shown = host.json(["ps"])["items"][0].clone();
        assert_eq!(shown["name"], "train");
        assert_eq!(shown["compute"], 3000, "parts of 10,000");
        // The engine's name for it, by the host's own view.
        assert_eq!(shown["containers"][0]["engine"], "podman", "{shown}");
        assert_eq!(shown["containers"][0]["name"], "train");
        let table = succeeded(&finish(&mut host.divvy(["ps"])));
        assert!(table.contains("podman:train"), "{table}");
        assert!(tenant.end().success());
        no_slice_is_left(&host, &podman);
    }
}

#[test]
fn a_detached_container_keeps_its_slice_until_it_ends() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = ["-d", "--name", "box", "--memory", "1GiB"];
    let mut run = podman.run_by_divvy(&flags, &image, &["/bin/sleep", "600"]);
    let id = succeeded(&finish(&mut run));
    assert_eq!(id.trim().len(), 64, "the engine's own output: {id}");
    let mut inside = Tenant::start_in_container(podman.command(&["exec", "-i", "box", "/bin/probe"]));
    assert_eq!(inside.memory().1, GIB, "a shell opened later is inside");
    assert!(inside.end().success());
    assert_eq!(host.slices().len(), 1);
    succeeded(&finish(&mut podman.command(&["kill", "box"])));
    no_slice_is_left(&host, &podman);
}

#[test]
fn a_slice_ends_though_who_made_it_was_killed() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let mut tenant = starts(&podman, &["--name", "box", "--memory", "1GiB"], &image);
    assert_eq!(tenant.allocate(100 * MIB), Ok(()));
    let divvy = processes::with_environment("DIVVY_RUN_DIR", &host.run_directory());
    let runs = |pid: &&u32| {
        let words = processes::arguments(**pid);
        words.get(1).is_some_and(|word| word == "podman") && words[0].ends_with("divvy")
    };
    let divvy = *divvy.iter().find(runs).expect("divvy podman runs");
    processes::signal(divvy, Signal::KILL);
    tenant.wait();
    // The container lives, and so does its slice.
    assert_eq!(host.slice("box").memory_used_bytes, 100 * MIB);
    succeeded(&finish(&mut podman.command(&["kill", "box"])));
    no_slice_is_left(&host, &podman);
}

#[test]
fn a_lasting_slice_can_be_joined_and_stays() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    succeeded(&finish(
        &mut host.divvy(["slice", "create", "alice", "--memory", "1GiB"]),
    ));
    let mut tenant = starts(&podman, &["--slice", "alice"], &image);
    assert_eq!(tenant.memory().1, GIB);
    assert!(tenant.end().success());
    assert_eq!(host.slices().len(), 1);
}

#[test]
fn the_dry_run_says_the_engines_own_words_and_makes_nothing() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let mut dry = podman.by_divvy(&[
        "run",
        "--rm",
        "--memory",
        "1GiB",
        "--name",
        "x",
        "--dry-run",
        "image",
        "cmd",
        "--memory",
        "a b",
    ]);
    let said = succeeded(&finish(&mut dry));
    let command = "run --device divvy.dev/slice=x --cidfile";
    assert!(
        said.contains(command) && said.contains("--rm --name x image cmd --memory 'a b'"),
        "{said}"
    );
    assert!(host.slices().is_empty());
}

/// An engine that is not there, one that is old, a slice that does not fit, a name that two files claim, a directory that
/// cannot be written.
#[test]
fn what_keeps_a_container_from_its_slice_is_said_and_nothing_is_left() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let refused = |flags: &[&str], code: &str| {
        let output = finish(&mut podman.run_by_divvy(flags, &image, &["/bin/probe"]));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(&format!("error[{code}]")), "{code}: {said}");
        assert!(host.slices().is_empty(), "{code}");
        said
    };
    refused(&["--memory", "900GiB"], "D0013");
    refused(&["--memory", "much"], "D0002");
    for around in [
        &["--privileged"][..],
        &["--device", "/dev/nvidia0"],
        &["--gpus", "all"],
    ] {
        refused(&[&["--memory", "1GiB"], around].concat(), "D0022");
    }
    let claim = podman.cdi().join("other.json");
    let text = r#"{"cdiVersion": "0.3.0", "kind": "divvy.dev/slice",
                   "devices": [{"name": "twice", "containerEdits": {"env": ["A=b"]}}]}"#;
    std::fs::write(&claim, text).expect("written");
    refused(&["--memory", "1GiB", "--name", "twice"], "D0048");
    std::fs::remove_file(&claim).expect("removed");

    // Another directory than the engine reads: its "unresolvable" is the engine's, and nothing is left.
    let blocked = host.folder().join("file");
    std::fs::write(&blocked, "").expect("written");
    let mut run = podman.by_divvy(&["run", "--memory", "1GiB", "--cdi-directory"]);
    run.arg(blocked.join("cdi")).arg("image");
    let said = stderr(&finish(&mut run));
    assert!(said.contains("error[D0047]"), "{said}");

    // Engines that are not there, or old.
    let bin = host.folder().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    let old = "#!/bin/sh\ncase $1 in --version) echo podman version 3.4.4;; *) exit 125;; esac\n";
    std::fs::write(bin.join("podman"), old).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.join("podman"), mode).expect("a mode");
    let mut run = host.divvy(["podman", "run", "--memory", "1GiB", "--cdi-directory"]);
    run.arg(host.folder().join("cdi")).arg("image").env("PATH", &bin);
    let said = stderr(&finish(&mut run));
    assert!(said.contains("error[D0044]") && said.contains("3.4.4"), "{said}");
    assert!(host.slices().is_empty());
}

/// `--replace`, which quadlet and `podman generate systemd` write: the old one's memory may be what the new one needs.
#[test]
fn a_container_takes_the_place_of_the_one_of_its_name() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = ["-d", "--replace", "--name", "box", "--memory", "60GiB"];
    let run = || finish(&mut podman.kept_by_divvy(&flags, &image, &["/bin/sleep", "600"]));
    let first = succeeded(&run());
    let before = host.json(["ps"])["items"][0]["id"].clone();
    let dry = [&flags[..], &["--dry-run"]].concat();
    let dry = finish(&mut podman.kept_by_divvy(&dry, &image, &["/bin/sleep"]));
    let said = stderr(&dry);
    assert!(!said.contains("D0021"), "{said}");
    assert_eq!(host.json(["ps"])["items"][0]["id"], before, "{said}");
    assert_ne!(succeeded(&run()), first, "another container");
    let shown = host.json(["ps"])["items"].clone();
    assert_eq!(shown.as_array().map(Vec::len), Some(1), "{shown}");
    assert_ne!(shown[0]["id"], before, "and another slice");
    let mut inside = Tenant::start_in_container(podman.command(&["exec", "-i", "box", "/bin/probe"]));
    assert_eq!(inside.memory().1, 60 * GIB);
    assert!(inside.end().success());
    // A refused slice replaces nothing.
    let more = ["-d", "--replace", "--name", "box", "--memory", "900GiB"];
    let refused = finish(&mut podman.kept_by_divvy(&more, &image, &["/bin/sleep", "600"]));
    assert!(stderr(&refused).contains("error[D0013]"), "{}", stderr(&refused));
    let running = finish(&mut podman.command(&["inspect", "--format", "{{.State.Running}}", "box"]));
    assert_eq!(succeeded(&running), "true\n", "the old one is there");
    // A file of another container's id ends no process.
    let stale = host.folder().join("cid");
    std::fs::write(&stale, "0123").expect("written");
    let stale = ["--cidfile", stale.to_str().expect("UTF-8"), "--memory", "1GiB"];
    let refused = finish(&mut podman.run_by_divvy(&stale, &image, &["/bin/sleep", "0"]));
    assert!(
        stderr(&refused).contains("is there already"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(host.slices().len(), 1);
    // A slice that is not that container's is not replaced.
    succeeded(&finish(
        &mut host.divvy(["slice", "create", "own", "--memory", "1GiB"]),
    ));
    let flags = ["-d", "--replace", "--name", "own", "--memory", "1GiB"];
    let refused = finish(&mut podman.kept_by_divvy(&flags, &image, &["/bin/sleep", "600"]));
    assert!(stderr(&refused).contains("error[D0021]"), "{}", stderr(&refused));
}

/// Where the path of a container's cgroup has another id in front, or no cgroup names it, its slice is there as long as it.
#[test]
fn a_container_in_a_cgroup_of_another_name_keeps_its_slice() {
    let other = format!("/divvy-tests/{}", "0123456789abcdef".repeat(4));
    for (runtime, cgroup) in [
        ("runc", ["--cgroup-parent", other.as_str()]),
        ("crun", ["--cgroups", "disabled"]),
    ] {
        let host = Host::new();
        let Some(podman) = Podman::over(&host, runtime) else {
            return;
        };
        let image = image(&host);
        let flags = [
            "-d",
            "--name",
            "box",
            "--memory",
            "1GiB",
            "--policy",
            "best-effort",
        ];
        let flags = [&flags[..], &cgroup].concat();
        succeeded(&finish(&mut podman.run_by_divvy(
            &flags,
            &image,
            &["/bin/sleep", "600"],
        )));
        // The helper has looked, and waits for the container.
        let waits = |words: &[String]| words.iter().any(|word| word == "wait");
        until("the engine is waited for", || {
            let all = processes::with_environment("DIVVY_RUN_DIR", &host.run_directory());
            all.iter()
                .any(|pid| waits(&processes::arguments(*pid)))
                .then_some(())
        });
        let mut inside = Tenant::start_in_container(podman.command(&["exec", "-i", "box", "/bin/probe"]));
        assert_eq!(inside.memory().1, GIB, "{runtime}");
        assert!(inside.end().success());
        succeeded(&finish(&mut podman.command(&["kill", "box"])));
        no_slice_is_left(&host, &podman);
    }
}

/// The runtime makes empty files where ours are mounted: in a folder of the host's they would stand in everybody's way.
#[test]
fn no_folder_of_the_host_is_mounted_where_ours_go() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let libraries = host.folder().join("libraries");
    std::fs::create_dir(&libraries).expect("a folder");
    let mount = format!("{}:/usr/lib/x86_64-linux-gnu", libraries.display());
    let annotation = ["--annotation", "divvy.dev/memory=1GiB", "-v", &mount];
    for mut run in [
        podman.run_by_divvy(&["--memory", "1GiB", "-v", &mount], &image, &["/bin/probe"]),
        podman.run_over_wrapper(&[], &annotation, &image, &["/bin/probe"]),
    ] {
        let output = finish(&mut run);
        let said = stderr(&output);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("D0022") && said.contains("cannot be mounted"),
            "{said}"
        );
        assert_eq!(std::fs::read_dir(&libraries).expect("a folder").count(), 0);
        assert!(host.slices().is_empty());
    }
}

/// A container that does nothing has its slice all the same.
#[test]
fn a_slice_is_not_deleted_under_a_container() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let flags = ["-d", "--name", "box", "--memory", "1GiB"];
    succeeded(&finish(&mut podman.kept_by_divvy(
        &flags,
        &image,
        &["/bin/sleep", "600"],
    )));
    let refused = finish(&mut host.divvy(["slice", "delete", "box"]));
    let said = stderr(&refused);
    assert!(
        said.contains("error[D0026]") && said.contains("podman:box"),
        "{said}"
    );
    assert_eq!(host.slices().len(), 1);
    succeeded(&finish(&mut podman.command(&["stop", "--time", "0", "box"])));
    let deleted = finish(&mut host.divvy(["slice", "delete", "box"]));
    assert!(deleted.status.success(), "{}", stderr(&deleted));
    assert!(
        stderr(&deleted).contains("cannot be started again"),
        "{}",
        stderr(&deleted)
    );
    assert!(host.slices().is_empty());
}

/// No engine at all, and no runtime below the wrapper.
#[test]
fn an_engine_that_is_not_there_is_named() {
    let host = Host::new();
    // In a mount namespace where no file is called docker that one could run.
    let hide = "for place in /usr/local/sbin /usr/sbin /usr/local/bin /usr/bin; do \
                if [ -e $place/docker ]; then mount --bind /dev/null $place/docker; fi; done; exec \"$@\"";
    let mut run = host.command("unshare");
    run.args(["--mount", "sh", "-c", hide, "sh"]);
    run.arg(divvy_tests::build::binaries().join("divvy"));
    let output = finish(run.args(["docker", "run", "--memory", "1GiB", "image"]));
    let said = stderr(&output);
    assert!(
        said.contains("error[D0043]") && said.contains("divvy podman run"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(125));
    let mut wrapper = host.divvy(["oci-runtime", "run", "--bundle", "/none", "box"]);
    let said = stderr(&finish(wrapper.env("DIVVY_OCI_RUNTIME", "none-such")));
    assert!(
        said.contains("error[D0043]") && said.contains("none-such"),
        "{said}"
    );
    assert!(host.slices().is_empty());
}

/// A device that goes between the request and the start: the engine only fails, and we say which node is gone.
#[test]
fn a_device_that_is_gone_at_the_start_is_named() {
    let host = Host::new();
    let Some(_podman) = Podman::new(&host) else { return };
    let (bin, cdi) = (host.folder().join("bin"), host.folder().join("cdi"));
    std::fs::create_dir(&bin).expect("a folder");
    // The engine finds that what is to be mounted has gone.
    let engine = format!(
        "#!/bin/sh\nsed -i s,/run/boxes/,/run/gone/, {}/*.json; exit 126\n",
        cdi.display()
    );
    std::fs::write(bin.join("podman"), engine).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.join("podman"), mode).expect("a mode");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let mut run = host.divvy(["podman", "run", "--memory", "1GiB", "--cdi-directory"]);
    run.arg(&cdi).arg("image").env("PATH", path);
    let output = finish(&mut run);
    let said = stderr(&output);
    assert!(
        said.contains("error[D0048]") && said.contains("cannot be used"),
        "{said}"
    );
    assert!(host.slices().is_empty());
}

/// An image of musl: its loader loads nothing of ours. It is refused before it starts where its folder is known, and
/// ended with a word where it is not.
#[test]
fn programs_that_no_limiter_can_be_in_are_refused() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let mut program = std::fs::read(divvy_tests::clients::probe()).expect("the probe");
    let loader = b"/lib64/ld-linux-x86-64.so.2";
    let at = program
        .windows(loader.len())
        .position(|part| part == loader)
        .expect("it asks for a loader");
    program[at..at + loader.len()].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0\0\0");
    let file = host.folder().join("musl");
    std::fs::write(&file, program).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&file, mode).expect("a mode");
    image.file(&file, "/bin/musl");
    let output = finish(&mut podman.run_by_divvy(&["--memory", "1GiB"], &image, &["/bin/musl"]));
    let said = stderr(&output);
    assert!(said.contains("error[D0022]") && said.contains("musl"), "{said}");
    assert_eq!(output.status.code(), Some(125));
    assert!(host.slices().is_empty());
}
