//! Slices in containers: Debian's podman over its runc and crun, with CDI and nothing else.

use std::process::Command;

use divvy_host::built::Built;
use divvy_tests::clients::{probe, tool, tools_python};
use divvy_tests::containers::{Image, Podman};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::processes;
use divvy_tests::tenant::Tenant;
use divvy_tests::{GIB, MIB};
use serde_json::Value;

/// Makes a slice for containers of this podman; the name of its CDI device.
pub fn slice(host: &Host, podman: &Podman<'_>, name: &str, memory: &str) -> String {
    let mut make = host.divvy(["cdi", "slice", "--memory", memory, "--name", name, "--directory"]);
    let device = succeeded(&finish(make.arg(podman.cdi())));
    assert_eq!(device.trim(), format!("divvy.dev/slice={name}"));
    device.trim().to_owned()
}

/// An image with the probe.
pub fn image(host: &Host) -> Image {
    let image = Image::new(host);
    image.program(&probe(), "/bin/probe");
    image
}

pub fn starts(podman: &Podman<'_>, flags: &[&str], image: &Image) -> Tenant {
    Tenant::start_in_container(podman.run(&[&["-i"], flags].concat(), image, &["/bin/probe"]))
}

#[test]
fn a_cuda_program_in_a_container_is_inside_its_slice() {
    for runtime in ["runc", "crun"] {
        let host = Host::new();
        let Some(podman) = Podman::over(&host, runtime) else {
            return;
        };
        let (image, device) = (image(&host), slice(&host, &podman, "inside", "1GiB"));
        let mut tenant = starts(&podman, &["--device", &device], &image);
        assert_eq!(tenant.memory(), (GIB, GIB));
        assert_eq!(tenant.allocate(700 * MIB), Ok(()));
        assert_eq!(tenant.allocate(700 * MIB), Err("CUDA_ERROR_OUT_OF_MEMORY".into()));
        let shown = host.slice("inside");
        assert_eq!(shown.memory_used_bytes, 700 * MIB);
        assert!(tenant.copies());
        // Its id on the host, not the one in the container.
        assert_eq!(shown.processes.len(), 1);
        assert!(processes::arguments(shown.processes[0].pid)[0].ends_with("probe"));
        assert_eq!(
            host.json(["ps"])["unmanaged"],
            serde_json::json!([]),
            "it is not unmanaged"
        );
        assert!(tenant.end().success());
        assert_eq!(host.slice("inside").memory_used_bytes, 0);
    }
}

#[test]
fn two_containers_share_a_device_and_neither_gets_the_others_memory() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let devices = [("first", "1GiB"), ("second", "2GiB")].map(|(name, memory)| {
        let device = slice(&host, &podman, name, memory);
        (name, device)
    });
    let [mut first, mut second] = devices
        .each_ref()
        .map(|(_, device)| starts(&podman, &["--device", device], &image));
    assert_eq!((first.memory().1, second.memory().1), (GIB, 2 * GIB));
    assert_eq!(first.allocate(900 * MIB), Ok(()));
    assert_eq!(second.allocate(1900 * MIB), Ok(()));
    assert!(first.allocate(200 * MIB).is_err() && second.allocate(200 * MIB).is_err());
    let [one, two] = devices.each_ref().map(|(name, _)| host.slice(name));
    assert_eq!(one.device_uuid, two.device_uuid);
    assert_eq!(
        (one.memory_used_bytes, two.memory_used_bytes),
        (900 * MIB, 1900 * MIB)
    );
}

#[test]
fn a_shell_opened_later_is_inside_the_slice_whatever_its_environment() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "later", "1GiB"));
    let mut first = starts(&podman, &["--name", "box", "--device", &device], &image);
    assert_eq!(first.allocate(600 * MIB), Ok(()));
    // No variable at all; variables that point elsewhere.
    let inside = |words: &[&str]| {
        let words = [&["exec", "-i", "box"], words, &["/bin/probe"]].concat();
        Tenant::start_in_container(podman.command(&words))
    };
    for words in [
        &["/usr/bin/env", "-i"][..],
        &[
            "/usr/bin/env",
            "DIVVY_SLICE=/tmp/none",
            "DIVVY_DRIVER=/run/divvy/below/libcuda.so.1",
            "DIVVY_EMULATED=l4",
        ],
        &[
            "/bin/sh",
            "-c",
            "unset LD_PRELOAD LD_LIBRARY_PATH DIVVY_SLICE; exec \"$0\"",
        ],
    ] {
        let mut later = inside(words);
        assert_eq!(later.memory().1, GIB, "{words:?}");
        assert!(later.allocate(600 * MIB).is_err(), "{words:?}");
        assert_eq!(later.allocate(300 * MIB), Ok(()), "{words:?}");
        assert!(later.end().success());
        host.until_used("later", 600 * MIB);
    }
}

#[test]
fn what_a_killed_container_held_comes_back() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "killed", "1GiB"));
    let mut tenant = starts(&podman, &["--name", "box", "--device", &device], &image);
    assert_eq!(tenant.allocate(900 * MIB), Ok(()));
    host.until_used("killed", 900 * MIB);
    succeeded(&finish(&mut podman.command(&["kill", "box"])));
    assert!(!tenant.wait().success());
    host.until_used("killed", 0);
    let mut next = starts(&podman, &["--device", &device], &image);
    assert_eq!(next.allocate(900 * MIB), Ok(()));
}

#[test]
fn nvidia_ml_py_in_a_container_shows_the_slice() {
    let Some(python) = tools_python() else { return };
    let host = Host::with_devices("h100*2");
    let Some(podman) = Podman::new(&host) else { return };
    let device = slice(&host, &podman, "looked-at", "1GiB");
    let mut tenant = starts(&podman, &["--device", &device], &image(&host));
    assert_eq!(tenant.allocate(256 * MIB), Ok(()));
    let text = |path: std::path::PathBuf| path.into_os_string().into_string().expect("UTF-8");
    let (python, look) = (text(python), text(tool("look.py")));
    let seen = podman
        .run(&["--device", &device], &Image::of_host(), &[&python, &look])
        .output();
    let seen = succeeded(&seen.expect("podman starts"));
    let devices: Value = serde_json::from_str(&seen).expect("JSON");
    assert_eq!(devices.as_array().map(Vec::len), Some(1), "{devices}");
    let memory = serde_json::json!([GIB, 256 * MIB, 768 * MIB]);
    assert_eq!(devices[0]["memory"], memory);
    assert_eq!(devices[0]["uuid"], host.slice("looked-at").device_uuid);
}

#[test]
fn a_slices_file_goes_with_the_slice() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let device = slice(&host, &podman, "gone", "1GiB");
    let files = || std::fs::read_dir(podman.cdi()).expect("a folder").count();
    assert_eq!(files(), 1);
    succeeded(&finish(&mut host.divvy(["slice", "delete", "gone"])));
    assert_eq!(files(), 0);
    let refused = finish(&mut podman.run(&["--device", &device], &image(&host), &["/bin/probe"]));
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("unresolvable"), "{}", stderr(&refused));
    assert_eq!(
        std::fs::read_dir(host.run_directory().join("containers"))
            .expect("a folder")
            .count(),
        0
    );
}

/// AMD's nodes as a machine with eight accelerators has them. No driver is behind their numbers: a node that a container
/// may open answers "No such device", one that it may not "Operation not permitted".
#[test]
fn of_amds_devices_a_container_gets_kfd_and_exactly_the_nodes_asked_for() {
    let host = Host::new();
    for runtime in ["runc", "crun"] {
        let Some(podman) = Podman::over(&host, runtime) else {
            return;
        };
        let root = host.folder().join(format!("machine-{runtime}"));
        let _machine = Built::mi300x(&root, 1);
        std::fs::create_dir_all(root.join("dev/dri")).expect("a folder");
        let node = |path: &str, minor: u32| {
            let mut make = Command::new("mknod");
            make.arg(root.join(path)).args(["c", "240", &minor.to_string()]);
            succeeded(&finish(&mut make));
        };
        node("dev/kfd", 0);
        for minor in 130..138 {
            node(&format!("dev/dri/renderD{minor}"), minor);
        }
        let mut generate = host.divvy(["cdi", "generate", "--vendor", "amd", "--sysroot"]);
        generate.arg(&root).arg("--directory").arg(podman.cdi());
        let written = succeeded(&finish(&mut generate));
        assert!(
            written.contains("amd.com/gpu=GPU-5a3f000000001001\n"),
            "{written}"
        );
        let image = Image::new(&host);
        // The container may make nodes, and still not open those of other devices.
        let script = "ls /dev/dri; for minor in 0 131 132; do mknod /dev/$minor c 240 $minor; \
                      dd if=/dev/$minor of=/dev/null count=0 2>&1 || true; done";
        for name in ["1", "GPU-5a3f000000001001"] {
            let device = format!("amd.com/gpu={name}");
            let flags = ["--device", &device, "--cap-add", "MKNOD"];
            let seen = succeeded(&finish(&mut podman.run(
                &flags,
                &image,
                &["/bin/sh", "-c", script],
            )));
            let lines: Vec<&str> = seen.lines().collect();
            assert_eq!(lines[0], "renderD131", "{seen}");
            assert!(lines[1].ends_with("No such device or address"), "kfd: {seen}");
            assert!(lines[2].ends_with("No such device or address"), "its own: {seen}");
            assert!(lines[3].ends_with("Operation not permitted"), "another's: {seen}");
            assert_eq!(lines.len(), 4, "{seen}");
        }
    }
}

/// CVE-2024-0132: an image puts links in the place of what is mounted over, which lead out of it.
#[test]
fn cve_2024_0132_links_in_the_place_of_mount_targets_lead_nowhere_out_of_the_image() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let device = slice(&host, &podman, "linked", "1GiB");
    let image = image(&host);
    let victim = host.folder().join("victim");
    std::fs::create_dir(&victim).expect("a folder");
    let out = format!("../../../../../../../../..{}", victim.display());
    for place in ["/run/divvy", "/usr/lib64"] {
        image.link(place, &out);
    }
    image.link("/etc/ld.so.preload", &format!("{out}/preload"));
    let mut tenant = starts(&podman, &["--device", &device], &image);
    assert_eq!(tenant.memory().1, GIB);
    assert!(tenant.allocate(2 * GIB).is_err());
    assert!(tenant.end().success());
    let left: Vec<_> = std::fs::read_dir(&victim).expect("a folder").collect();
    assert!(left.is_empty(), "the host's folder was written to: {left:?}");
}

/// CVE-2025-23266: an image's LD_PRELOAD and working directory meet a hook that runs on the host. There is no hook, and the
/// library runs where every program of the image runs.
#[test]
fn cve_2025_23266_an_images_own_preloads_stay_in_the_container_and_in_the_slice() {
    let Some(compiler) = divvy_tests::clients::compiler() else {
        return;
    };
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let device = slice(&host, &podman, "preloaded", "1GiB");
    let image = image(&host);
    let source = host.folder().join("evil.c");
    let marker = host.folder().join("marker");
    let code = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void run(void) {{ \
         open(\"{}\", O_CREAT | O_WRONLY, 0600); open(\"/tmp/ran\", O_CREAT | O_WRONLY, 0600); }}\n",
        marker.display()
    );
    std::fs::write(&source, code).expect("written");
    let library = host.folder().join("evil.so");
    let mut compile = Command::new(compiler);
    compile
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    succeeded(&finish(&mut compile));
    image.file(&library, "/evil/evil.so");
    // Its own file of preloads is covered by ours.
    image.write("/etc/ld.so.preload", "/evil/none-such.so\n", 0o644);
    let flags = [
        "--device",
        &device,
        "--env",
        "LD_PRELOAD=./evil.so",
        "--workdir",
        "/evil",
    ];
    let mut tenant = starts(&podman, &flags, &image);
    assert_eq!(tenant.memory().1, GIB);
    assert!(tenant.allocate(2 * GIB).is_err());
    assert!(tenant.end().success());
    assert!(!marker.exists(), "the image's library ran on the host");
    let script = ["/bin/sh", "-c", "ls /tmp"];
    let ran = succeeded(&finish(&mut podman.run(&flags, &image, &script)));
    assert!(
        ran.lines().any(|line| line == "ran"),
        "a user's LD_PRELOAD works as ever: {ran}"
    );
}

/// The slice of `$(divvy container cdi slice ...)` is there for as long as a container has it.
#[test]
fn a_slice_without_a_name_goes_with_its_last_container() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let mut make = host.divvy(["cdi", "slice", "--memory", "1GiB", "--ttl", "8s", "--directory"]);
    let device = succeeded(&finish(make.arg(podman.cdi())));
    let mut tenant = starts(&podman, &["--device", device.trim()], &image);
    assert_eq!(tenant.memory().1, GIB);
    std::thread::sleep(std::time::Duration::from_secs(13));
    assert_eq!(host.slices().len(), 1, "its time is over, and a container has it");
    assert_eq!(tenant.allocate(MIB), Ok(()));
    assert!(tenant.end().success());
    divvy_tests::wait::until("the slice is gone", || host.slices().is_empty().then_some(()));
    // The shell's substitute for a slice that cannot be made starts no container.
    let refused = finish(&mut host.divvy(["cdi", "slice", "--memory", "900GiB"]));
    let device = String::from_utf8(refused.stdout).expect("text");
    let ran = finish(&mut podman.run(&["--device", device.trim()], &image, &["/bin/sleep", "0"]));
    assert!(!ran.status.success(), "{ran:?}");
}

/// The documentation's first commands, four times over: four slices of 25 GiB do not fit on the device at once.
#[test]
fn the_first_documented_commands_leave_no_slice_and_start_no_container_without_one() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let asks = ["cdi", "slice", "--memory", "25GiB", "--ttl", "60s", "--directory"];
    // A container that was started says so; one without a slice sees no device.
    let script = "test -e /run/divvy/slice/attach.sock && echo in-a-slice || echo without";
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
    for round in 0..4 {
        let mut make = host.divvy(asks);
        let device = said(&finish(make.arg(podman.cdi())));
        let ran = finish(&mut podman.run(&["--device", &device], &image, &["/bin/sh", "-c", script]));
        assert_eq!(said(&ran), "in-a-slice", "round {round}: {ran:?}");
        let flags = ["--memory", "25GiB"];
        let ran = finish(&mut podman.run_by_divvy(&flags, &image, &["/bin/sh", "-c", script]));
        assert_eq!(said(&ran), "in-a-slice", "round {round}: {ran:?}");
    }
    divvy_tests::wait::until("no slice is left", || host.slices().is_empty().then_some(()));
    // While others have the device, neither command starts anything.
    succeeded(&finish(
        &mut host.divvy(["slice", "create", "large", "--memory", "60GiB"]),
    ));
    for _ in 0..4 {
        let mut make = host.divvy(asks);
        let device = said(&finish(make.arg(podman.cdi())));
        let ran = finish(&mut podman.run(&["--device", &device], &image, &["/bin/sh", "-c", script]));
        assert!(!ran.status.success() && said(&ran).is_empty(), "{ran:?}");
        let flags = ["--memory", "25GiB"];
        let ran = finish(&mut podman.run_by_divvy(&flags, &image, &["/bin/sh", "-c", script]));
        assert!(!ran.status.success() && said(&ran).is_empty(), "{ran:?}");
    }
    assert_eq!(host.slices().len(), 1, "the large one");
}
