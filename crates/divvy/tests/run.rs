//! `divvy run` as a command among commands.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::{Host, kill, until};

fn shell(script: &str) -> Vec<&str> {
    vec!["run", "--memory", "1GiB", "--", "sh", "-c", script]
}

#[test]
fn the_exit_status_is_the_programs() {
    let host = Host::new();
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        assert_eq!(
            host.finish(&shell(script)).status.code(),
            Some(expected),
            "{script}"
        );
    }
}

#[test]
fn signals_to_divvy_are_the_programs() {
    let host = Host::new();
    for signal in ["TERM", "HUP", "INT", "USR1", "USR2", "QUIT"] {
        let script = format!("trap 'echo caught; exit 9' {signal}; echo ready; while :; do sleep 0.02; done");
        let mut child = host
            .divvy(&shell(&script))
            .stdout(Stdio::piped())
            .spawn()
            .expect("divvy starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "ready", "{signal}");
        kill(child.id(), signal);
        assert_eq!(lines.next().expect("a line").expect("text"), "caught", "{signal}");
        assert_eq!(child.wait().expect("divvy ends").code(), Some(9), "{signal}");
    }
}

#[test]
fn the_program_is_shown_its_slice_and_keeps_its_own_settings() {
    let host = Host::new();
    let output = host
        .divvy(&shell("env"))
        .env("LD_PRELOAD", "libm.so.6")
        .env("LD_LIBRARY_PATH", "/opt/own")
        .env("CUDA_VISIBLE_DEVICES", "0")
        .output()
        .expect("divvy starts");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let value = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} in {text}")).to_owned()
    };
    let preload = value("LD_PRELOAD");
    let entries: Vec<_> = preload.split(':').collect();
    assert_eq!(entries.len(), 3, "{preload}");
    assert_eq!(entries[0], "libm.so.6");
    assert!(entries[1].ends_with("/$LIB/libcuda.so.1"), "{preload}");
    assert!(entries[2].ends_with("/$LIB/libnvidia-ml.so.1"), "{preload}");
    let folder = value("LD_LIBRARY_PATH");
    let folders: Vec<_> = folder.split(':').collect();
    let [ours, refusals, runtimes, "/opt/own"] = folders[..] else {
        panic!("{folder}");
    };
    for name in ["libcudart.so.12", "libcudart.so.13"] {
        assert!(Path::new(runtimes).join(name).exists(), "{runtimes}/{name}");
    }
    assert!(
        Path::new(refusals).join("libnvcuvid.so.1").exists()
            && !Path::new(refusals).join("libnvidia-opencl.so.1").exists(),
        "{refusals}"
    );
    let layers = value("OPENCL_LAYERS");
    assert!(
        layers.ends_with("/libdivvy-opencl.so.1") && Path::new(&layers).exists(),
        "{layers}"
    );
    for name in [
        "libcuda.so.1",
        "libcuda.so",
        "libnvidia-ml.so.1",
        "libnvidia-ml.so",
    ] {
        assert!(Path::new(ours).join(name).exists(), "{ours}/{name}");
    }
    assert!(value("DIVVY_SLICE").ends_with("/attach.sock"));
    assert!(value("DIVVY_DRIVER").ends_with("/libdivvy_emulated_cuda.so"));
    assert!(value("DIVVY_NVML").ends_with("/libdivvy_emulated_nvml.so"));
    assert_eq!(value("DIVVY_EMULATED"), "h100");
    assert_eq!(value("DIVVY_RUN_DIR"), host.run_dir().to_string_lossy());
    let uuid = value("CUDA_VISIBLE_DEVICES");
    assert!(uuid.starts_with("GPU-"));
}

#[test]
fn a_dry_run_tells_all_and_changes_nothing() {
    let host = Host::new();
    let plan = host.json(&[
        "run",
        "--dry-run",
        "--memory",
        "25%",
        "--name",
        "maybe",
        "--",
        "sleep",
        "600",
    ]);
    assert_eq!(plan["kind"], "RunPlan");
    let total = plan["device"]["memory_total_bytes"].as_u64().expect("bytes");
    assert_eq!(plan["slice"]["memory_limit_bytes"], total / 4);
    assert!(plan["environment"]["LD_PRELOAD"].as_str().is_some());
    assert!(host.slices().is_empty());
    let text = host.text(&["run", "--dry-run", "--memory", "25%", "--", "true"]);
    assert!(text.contains("cooperative: not protected against"), "{text}");
    let (status, said) = host.refused(&["run", "--dry-run", "--memory", "1000GiB", "--", "true"]);
    assert_eq!((status, said.contains("error[D0013]")), (125, true), "{said}");
}

#[test]
fn two_halves_fit_one_device() {
    let host = Host::new();
    let _first = host.idle("first", "50%");
    let _second = host.idle("second", "50%");
    let (_, said) = host.refused(&["run", "--memory", "1MiB", "--", "true"]);
    assert!(
        said.contains("nothing is free; --wait waits until slices end"),
        "{said}"
    );
    host.text(&["resize", "first", "--memory", "25%"]);
    host.text(&["run", "--memory", "25%", "--", "true"]);
}

#[test]
fn an_emulated_product_is_made_on_demand_and_its_slice_survives_the_agent() {
    let host = Host::new();
    let child = host
        .divvy(&[
            "run",
            "--name",
            "small",
            "--device",
            "emulated:l4",
            "--memory",
            "50%",
            "--",
            "sleep",
            "600",
        ])
        .spawn()
        .expect("divvy starts");
    let _tenant = common::Tenant { child };
    until("the slice runs", || {
        host.slices().iter().any(|slice| slice["state"] == "running")
    });
    host.kill_agent();
    let slice = host.slice("small");
    assert_eq!(slice["emulated_spec"], "l4");
    host.text(&["resize", "small", "--memory", "25%"]);
}

#[test]
fn programs_of_another_word_size_say_nothing_odd() {
    let host = Host::new();
    let quiet = host.finish(&shell("true")).stderr;
    // The C library of 32-bit programs is a program itself.
    for program in ["/lib32/libc.so.6", "/lib/i386-linux-gnu/libc.so.6"] {
        if Path::new(program).exists() {
            let output = host.finish(&["run", "--memory", "1GiB", "--", program, "--version"]);
            assert!(output.status.success(), "{output:?}");
            assert_eq!(
                output.stderr,
                quiet,
                "{program}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn a_program_past_the_limiter_is_refused_or_counted() {
    // Linked statically, for it must always run.
    const STATIC: &str = "/sbin/ldconfig";
    if !Path::new(STATIC).exists() {
        return;
    }
    let host = Host::new();
    let refused = host.finish(&["run", "--memory", "1GiB", "--", STATIC, "--version"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("D0022") && said.contains("linked statically") && said.contains("best-effort"),
        "{said}"
    );
    let let_be = host.finish(&[
        "run",
        "--memory",
        "1GiB",
        "--policy",
        "best-effort",
        "--",
        STATIC,
        "--version",
    ]);
    assert!(let_be.status.success(), "{let_be:?}");
    assert!(!let_be.stdout.is_empty(), "{let_be:?}");
}

#[test]
fn without_a_gpu_it_says_so_once() {
    if Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let host = Host::new();
    let output = host
        .divvy(&shell("echo mine"))
        .env_remove("DIVVY_EMULATED")
        .output()
        .expect("divvy starts");
    assert_eq!(output.stdout, b"mine\n");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("emulated").count(), 1, "{said}");
}

#[test]
fn a_folders_file_asks_for_what_the_command_line_does_not() {
    let host = Host::new();
    std::fs::write(host.folder().join("divvy.toml"), "memory = \"3GiB\"\n").expect("written");
    let plan = host.json(&["run", "--dry-run", "--", "true"]);
    assert_eq!(plan["slice"]["memory_limit_bytes"], 3_u64 << 30);
    let plan = host.json(&["run", "--dry-run", "--memory", "1GiB", "--", "true"]);
    assert_eq!(plan["slice"]["memory_limit_bytes"], 1_u64 << 30);
}
