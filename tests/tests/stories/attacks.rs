//! What an image, or a process in a container, may try against the host that gives it a slice. Those by the names of
//! published holes are in `containers` too, and in the container crate's own tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use divvy_host::built::Built;
use divvy_tests::GIB;
use divvy_tests::build::binaries;
use divvy_tests::bundles::Bundle;
use divvy_tests::containers::Podman;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::containers::image;

const ALICE: (&str, &str) = ("divvy.dev/slice", "alice");

fn alice(host: &Host) {
    succeeded(&finish(
        &mut host.divvy(["slice", "create", "alice", "--memory", "1GiB", "--pods"]),
    ));
}

/// CVE-2025-23359: the correction of CVE-2024-0132 looked at a target and mounted there later; in between an image's
/// process put a link in its place. Here one swaps the targets' folders and links out of the root while containers
/// start. No part of Divvy touches the root. The runtime mounts inside it or refuses: the host's folder keeps its
/// contents, and gets no mount. crun makes nothing there. runc before 1.1.14 makes empty folders and files
/// (CVE-2024-45310), which is its own.
#[test]
fn cve_2025_23359_targets_that_change_while_containers_start_lead_nowhere_out_of_the_root() {
    const ROUNDS: u32 = 100;
    for runtime in ["runc", "crun"] {
        let host = Host::new();
        alice(&host);
        let image = image(&host);
        let program = ["/bin/ls", "/run/divvy/slice"];
        let Some(bundle) = Bundle::new(&host, &image, &program, &[ALICE], runtime) else {
            return;
        };
        let victim = host.folder().join("victim");
        std::fs::create_dir(&victim).expect("a folder");
        std::fs::write(victim.join("libcuda.so.1"), "the host's own").expect("written");
        let targets = ["run/divvy", "usr/lib64", "usr/lib/x86_64-linux-gnu"].map(|target| {
            let target = image.root().join(target);
            std::fs::create_dir_all(&target).expect("a folder");
            let link = target.with_extension("link");
            std::os::unix::fs::symlink(&victim, &link).expect("a link");
            (target, link)
        });
        let (over, swaps) = (AtomicBool::new(false), AtomicU32::new(0));
        let (mut ran, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for (target, link) in &targets {
                        renameat_with(CWD, target, CWD, link, RenameFlags::EXCHANGE).expect("swapped");
                        swaps.fetch_add(1, Ordering::Relaxed);
                    }
                    // Sometimes a container comes through: a runtime looks at a target several times.
                    let pause = swaps.load(Ordering::Relaxed) % 97 * 300;
                    std::thread::sleep(Duration::from_micros(pause.into()));
                }
            });
            for round in 0..ROUNDS {
                let output = finish(&mut bundle.run(&format!("race-{round}")));
                let seen = String::from_utf8_lossy(&output.stdout).into_owned();
                match output.status.success() && seen.contains("attach.sock") {
                    true => ran += 1,
                    false => refused += 1,
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        let own = std::fs::read_to_string(victim.join("libcuda.so.1")).expect("still there");
        assert_eq!(own, "the host's own", "{runtime}");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(
            !mounts.contains(&*victim.to_string_lossy()),
            "{runtime}: {mounts}"
        );
        let made: Vec<PathBuf> = std::fs::read_dir(&victim)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| !path.ends_with("libcuda.so.1"))
            .collect();
        for path in &made {
            let meta = std::fs::symlink_metadata(path).expect("there");
            let is_empty = match meta.is_dir() {
                true => walk(path)
                    .iter()
                    .all(|file| std::fs::metadata(file).is_ok_and(|meta| meta.len() == 0)),
                false => meta.len() == 0,
            };
            assert!(is_empty && runtime == "runc", "{runtime} made {}", path.display());
        }
        // The race was one: both sides were met, and the swapper was at it all the while.
        assert!(swaps.load(Ordering::Relaxed) > ROUNDS, "{swaps:?} swaps");
        assert!(ran > 0 && refused > 0, "{runtime}: {ran} ran, {refused} did not");
    }
}

/// CVE-2024-0132's kind: what a container puts in the place of a file of ours is not followed by the host's root, who makes
/// that file again for the slice's next container.
#[test]
fn what_a_container_puts_into_its_device_folder_is_met_by_no_process_on_the_host() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    for program in ["rm", "ln", "ls", "chmod"] {
        image.program(&Path::new("/usr/bin").join(program), &format!("/bin/{program}"));
    }
    alice(&host);
    let victim = host.folder().join("victim");
    std::fs::write(&victim, "precious").expect("written");
    let evil = format!(
        "cd /run/divvy/device && for file in *; do rm -f $file; ln -s {} $file; done; echo new > more; ls -A",
        victim.display()
    );
    let run = |script: &str| {
        let flags = ["--slice", "alice"];
        finish(&mut podman.run_by_divvy(&flags, &image, &["/bin/sh", "-c", script]))
    };
    let first = run(&evil);
    assert!(
        String::from_utf8_lossy(&first.stdout).contains("granted"),
        "{}",
        stderr(&first)
    );
    // The same slice again, and a host's file of the same name.
    assert_eq!(
        succeeded(&run("cat /run/divvy/device/granted; echo second"))
            .lines()
            .last(),
        Some("second")
    );
    assert_eq!(std::fs::read_to_string(&victim).expect("there"), "precious");
    // No page is a file in it, and what leads to them is not the container's to change.
    run("cd /run/divvy/device && chmod 4755 * */*; rm -f */*; echo new > pages/more");
    let given = host.run_directory().join("containers");
    let mode = |path: &Path| {
        let meta = std::fs::symlink_metadata(path).expect("there");
        std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o7777
    };
    let sockets: Vec<PathBuf> = walk(&given)
        .into_iter()
        .filter(|path| path.parent().is_some_and(|folder| folder.ends_with("pages")))
        .collect();
    let [socket] = sockets.as_slice() else {
        panic!("one socket: {sockets:?}");
    };
    assert!(
        socket.ends_with("pages.sock") && mode(socket) == 0o666,
        "{socket:?}"
    );
    assert_eq!(mode(&host.run_directory().join("emulated")), 0o700);
    let left = walk(&host.run_directory().join("containers"));
    assert!(left.iter().any(|path| path.ends_with("granted")), "{left:?}");
    for path in left {
        let meta = std::fs::symlink_metadata(&path).expect("there");
        assert!(
            !meta.is_symlink() && !path.ends_with("more"),
            "{}",
            path.display()
        );
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(walk(&path)),
            false => found.push(path),
        }
    }
    found
}

/// CVE-2019-5736: a container overwrote the runtime by /proc/self/exe. Ours is never in there to be overwritten: the wrapper
/// becomes the runtime, or waits for it outside.
#[test]
fn cve_2019_5736_no_program_of_the_hosts_is_reached_by_proc_self_exe() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    image.link("/bin/self", "/proc/self/exe");
    image.write("/bin/script", "#!/proc/self/exe\n", 0o755);
    // Looks at whatever runs beside it, as fast as it can, and tries to open it for writing.
    let hunt = "mkdir -p /tmp/hunt; while [ ! -e /tmp/over ]; do for exe in /proc/[0-9]*/exe /proc/self/exe; do \
                readlink $exe; if ( : >> $exe ); then echo wrote $exe; fi; done 2>/dev/null; done > /tmp/hunt/seen";
    image.program(Path::new("/usr/bin/readlink"), "/bin/readlink");
    image.program(Path::new("/usr/bin/mkdir"), "/bin/mkdir");
    let programs = [binaries().join("divvy"), "/usr/sbin/runc".into()];
    let before = programs
        .each_ref()
        .map(|file| std::fs::read(file).expect("a program"));
    let flags = ["-d", "--name", "box", "--annotation", "divvy.dev/memory=1GiB"];
    let mut run = podman.kept_over_wrapper(&flags, &image, &["/bin/sh", "-c", hunt]);
    succeeded(&finish(&mut run));
    let over = |words: &[&str]| finish(&mut podman.over_wrapper(&[], words));
    for _ in 0..5 {
        for program in ["/proc/self/exe", "/bin/self", "/bin/script"] {
            // It is whatever the runtime was at that moment, and fails; the hunter's view counts.
            let _any = over(&["exec", "box", program, "--version"]);
        }
    }
    // As a container's first program too.
    let flags = ["--annotation", "divvy.dev/memory=1GiB"];
    for program in ["/bin/self", "/bin/script"] {
        let _any = finish(&mut podman.run_over_wrapper(&[], &flags, &image, &[program, "--version"]));
    }
    // From the host: with its first program the container ends, and whatever runs in it.
    std::fs::write(image.root().join("tmp/over"), "").expect("written");
    let seen = std::fs::read_to_string(image.root().join("tmp/hunt/seen")).expect("what it saw");
    assert!(seen.lines().count() > 10, "it hunted: {seen}");
    for line in seen.lines() {
        assert!(!line.contains("divvy") && !line.starts_with("wrote"), "{line}");
    }
    for (file, before) in programs.iter().zip(before) {
        let now = std::fs::read(file).expect("a program");
        assert!(now == before, "{} was changed", file.display());
    }
}

/// CVE-2024-21626: a working directory in /proc/self/fd led out by a descriptor that the runtime had left open. The runtime
/// below gets none of ours.
#[test]
fn cve_2024_21626_no_descriptor_of_ours_reaches_the_runtime_or_the_container() {
    let host = Host::new();
    alice(&host);
    let image = image(&host);
    // A runtime that only says what it has open.
    let says = host.folder().join("says");
    let seen = host.folder().join("seen");
    let script = format!("#!/bin/sh\nls -l /proc/$$/fd > {}\nexit 1\n", seen.display());
    std::fs::write(&says, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&says, mode).expect("a mode");
    let Some(bundle) = Bundle::new(
        &host,
        &image,
        &["/bin/sh"],
        &[ALICE],
        says.to_str().expect("UTF-8"),
    ) else {
        return;
    };
    for verb in ["run", "create"] {
        let mut call = bundle.call(&[verb, "--bundle"]);
        let failed = finish(call.arg(bundle.folder()).arg("box"));
        assert!(!failed.status.success());
        let open = std::fs::read_to_string(&seen).expect("it was called");
        std::fs::remove_file(&seen).expect("removed");
        let strange = open.lines().filter(|line| line.contains("->")).filter(|line| {
            let known = [
                "/dev/null",
                "pipe:",
                says.to_str().expect("UTF-8"),
                seen.to_str().expect("UTF-8"),
            ];
            !known.iter().any(|known| line.contains(known))
        });
        assert_eq!(strange.collect::<Vec<_>>(), [""; 0], "{verb}: {open}");
    }
    // And with a real one no such folder leads anywhere.
    let Some(bundle) = Bundle::new(&host, &image, &["/bin/ls"], &[ALICE], "runc") else {
        return;
    };
    for descriptor in 3..12 {
        bundle.change(|config| {
            config["process"]["cwd"] = format!("/proc/self/fd/{descriptor}").into();
            config["process"]["args"] = serde_json::json!(["/bin/ls", "../../../../../..", "."]);
        });
        let output = finish(&mut bundle.run(&format!("cwd-{descriptor}")));
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let host_only = ["home", "opt", "srv", "boot"];
        assert!(
            !out.lines().any(|line| host_only.contains(&line)),
            "{descriptor}: {out} {}",
            stderr(&output)
        );
    }
}

/// An image brings an nvidia-smi of its own, first on its PATH and where NVIDIA's lies: it is not run on the host, and
/// where the host has one the container sees that. Also: what `divvy container cdi generate` writes for NVIDIA's devices, whole
/// and divided, loads in podman, and a device that was not asked for cannot be opened.
#[test]
fn a_fake_nvidia_smi_is_run_by_no_process_on_the_host_and_is_covered_by_the_hosts_own() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let root = host.folder().join("machine");
    let machine = nvidias(&root);
    let mut generate = host.divvy(["cdi", "generate", "--vendor", "nvidia", "--sysroot"]);
    generate.arg(&root).arg("--directory").arg(podman.cdi());
    succeeded(&finish(&mut generate));
    machine.file("usr/bin/nvidia-smi", "the host's own\n");

    let marker = host.folder().join("marker");
    let fake = format!("#!/bin/sh\n: > {}\necho an image's\n", marker.display());
    let image = image(&host);
    for place in [
        "/usr/bin/nvidia-smi",
        "/bin/nvidia-smi",
        "/usr/local/bin/nvidia-smi",
    ] {
        image.write(place, &fake, 0o755);
    }
    let script = "cat /usr/bin/nvidia-smi; for minor in 0 1 30 31 48; do mknod /dev/x$minor c 240 $minor; \
                  dd if=/dev/x$minor of=/dev/null count=0 2>&1 || true; done";
    for (name, allowed) in [("0", &[0][..]), ("1:0", &[1, 30, 31]), ("1:1", &[1, 48])] {
        let device = format!("nvidia.com/gpu={name}");
        let flags = ["--device", &device, "--cap-add", "MKNOD"];
        let seen = succeeded(&finish(&mut podman.run(
            &flags,
            &image,
            &["/bin/sh", "-c", script],
        )));
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines[0], "the host's own", "{seen}");
        for (line, minor) in lines[1..].iter().zip([0, 1, 30, 31, 48]) {
            // No driver is behind the numbers: the nodes that may be opened answer that there is none.
            let expected = match allowed.contains(&minor) {
                true => "No such device or address",
                false => "Operation not permitted",
            };
            assert!(line.ends_with(expected), "{name}: {minor}: {line}");
        }
    }
    // In a slice, by both ways, there is none of the host's to cover it; it stays inside.
    for mut run in [
        podman.run_by_divvy(
            &["--memory", "1GiB"],
            &image,
            &["/bin/sh", "-c", "nvidia-smi || true"],
        ),
        podman.run_over_wrapper(
            &[],
            &["--annotation", "divvy.dev/memory=1GiB"],
            &image,
            &["/bin/sh", "-c", "nvidia-smi || true"],
        ),
    ] {
        finish(&mut run);
    }
    succeeded(&finish(&mut host.divvy(["devices"])));
    assert!(!marker.exists(), "an image's nvidia-smi ran on the host");
}

/// A machine with two H100, the second divided, whose nodes have numbers that no driver has.
fn nvidias(root: &Path) -> Built {
    let machine = Built::h100(root, 2);
    for (instance, minor) in [(1, 30), (5, 48)] {
        let mig = format!("proc/driver/nvidia/capabilities/gpu1/mig/gi{instance}");
        machine.file(&format!("{mig}/access"), &format!("DeviceFileMinor: {minor}\n"));
        let own = format!("DeviceFileMinor: {}\n", minor + 1);
        machine.file(&format!("{mig}/ci0/access"), &own);
    }
    machine.file("usr/bin/nvidia-smi", "the host's own\n");
    std::fs::create_dir_all(root.join("dev/nvidia-caps")).expect("a folder");
    let nodes = [
        ("nvidia0".to_owned(), 0),
        ("nvidia1".to_owned(), 1),
        ("nvidiactl".to_owned(), 255),
    ];
    let capabilities = [30, 31, 48, 49].map(|minor| (format!("nvidia-caps/nvidia-cap{minor}"), minor));
    for (node, minor) in nodes.into_iter().chain(capabilities) {
        let mut make = std::process::Command::new("mknod");
        make.arg(root.join("dev").join(node))
            .args(["c", "240", &minor.to_string()]);
        succeeded(&finish(&mut make));
    }
    machine
}

/// NVIDIA's own images have drivers in /usr/local/cuda/compat, and set LD_LIBRARY_PATH. Programs that open `libcuda.so` first,
/// without a version, would find those before anything that is mounted over the system's libraries.
#[test]
fn another_driver_that_a_variable_leads_to_is_not_found() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    alice(&host);
    let image = image(&host);
    let driver = binaries().join("libdivvy_emulated_cuda.so");
    for name in ["libcuda.so", "libcuda.so.1"] {
        image.file(&driver, &format!("usr/local/cuda/compat/{name}"));
    }
    for folder in ["/usr/local/cuda/compat", "/run/divvy/below"] {
        let variable = format!("LD_LIBRARY_PATH={folder}");
        let flags = ["--slice", "alice", "-i", "--env", &variable];
        let mut tenant = Tenant::start_in_container(podman.run_by_divvy(&flags, &image, &["/bin/probe"]));
        assert_eq!(tenant.memory().1, GIB, "{folder}");
        assert!(tenant.allocate(2 * GIB).is_err(), "{folder}");
        assert!(tenant.end().success());
    }
}
