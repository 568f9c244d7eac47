//! The files of examples/jobs, run by the tools that they are for. docs/plain-machines.md.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_tests::build::workspace;
use divvy_tests::clients::{jobs_python, parallel};
use divvy_tests::host::{Host, finish, stderr, succeeded};

use crate::python;

fn examples() -> PathBuf {
    workspace().join("examples/jobs")
}

/// A tenant that prints its arguments, its rank, and how many MiB of memory it sees. Ranks share a pipe: a line is one
/// write, because `print` makes one of each word where PYTHONUNBUFFERED is set.
const TENANT: &str = r#"
import ctypes, os, sys
cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
words = ["tenant", os.environ.get("RANK", "-"), str(total.value >> 20), *sys.argv[1:]]
os.write(1, (" ".join(words) + "\n").encode())
"#;

/// What torchrun and Accelerate do, as far as their command lines go: PyTorch is 800 MB, and is not installed for this.
const LAUNCHER: &str = r#"#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
if words[0] == "launch":
    words.pop(0)
count = 1
python = [sys.executable]
while words[0].startswith("-"):
    flag = words.pop(0)
    if flag in ("--nproc-per-node", "--num_processes"):
        count = int(words.pop(0))
    elif flag == "--no-python":
        python = []
    else:
        sys.exit(f"unknown flag {flag}")
ranks = [subprocess.Popen([*python, *words], env={**os.environ, "RANK": str(rank)}) for rank in range(count)]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"#;

/// A folder with the tenant, as `train.py`, and launchers on the PATH.
fn home(host: &Host) -> PathBuf {
    let home = host.folder().join("home");
    std::fs::create_dir(&home).expect("a folder");
    std::fs::write(home.join("train.py"), TENANT).expect("written");
    for name in ["torchrun", "accelerate"] {
        let path = home.join(name);
        std::fs::write(&path, LAUNCHER).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    home
}

fn command(host: &Host, program: impl AsRef<std::ffi::OsStr>, home: &Path) -> Command {
    // Any interpreter: the tenant needs no package.
    let mut command = python::command(host, Path::new("/usr/bin/python3"), program);
    let path = command
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .and_then(|(_, value)| value)
        .expect("a PATH")
        .to_owned();
    let mut with_home = home.as_os_str().to_owned();
    with_home.push(":");
    with_home.push(path);
    command.env("PATH", with_home).current_dir(home);
    command
}

/// Rank and memory in MiB of each tenant that told, and its arguments.
fn tenants(said: &str) -> Vec<(String, u64, String)> {
    let mut found: Vec<_> = said
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("tenant ")?.splitn(3, ' ');
            let (rank, total) = (words.next()?, words.next()?);
            Some((
                rank.to_owned(),
                total.parse().ok()?,
                words.next().unwrap_or_default().to_owned(),
            ))
        })
        .collect();
    found.sort();
    found
}

/// A quarter of the emulated H100, in MiB.
const QUARTER: u64 = 81_559 / 4;

#[test]
fn gnu_parallel_runs_four_at_a_time() {
    if parallel().is_none() {
        return;
    }
    let host = Host::new();
    let home = home(&host);
    let said = succeeded(&finish(&mut command(
        &host,
        examples().join("parallel.sh"),
        &home,
    )));
    let found = tenants(&said);
    assert_eq!(found.len(), 8, "{said}");
    assert!(found.iter().all(|(_, total, _)| *total == QUARTER), "{said}");
    assert!(found.iter().any(|(_, _, words)| words == "--seed 8"), "{said}");
    assert!(host.slices().is_empty());
}

#[test]
fn make_makes_each_target_in_a_slice() {
    let host = Host::new();
    let home = home(&host);
    let mut make = command(&host, "make", &home);
    make.arg("--jobs=6")
        .arg("--file")
        .arg(examples().join("Makefile"));
    succeeded(&finish(&mut make));
    for model in ["a", "b", "c", "d", "e", "f"] {
        let said = std::fs::read_to_string(home.join(format!("{model}.model"))).expect("made");
        let [(_, total, words)] = tenants(&said).try_into().expect("one tenant");
        assert_eq!((total, words), (QUARTER, format!("--model {model}")));
    }
}

#[test]
fn ranks_share_a_slice_or_have_one_each() {
    let host = Host::with_devices("h100*2");
    let home = home(&host);
    let launch = |which: &str| {
        let mut launch = command(&host, examples().join("launch.sh"), &home);
        let said = succeeded(&finish(launch.arg(which)));
        let found: Vec<_> = tenants(&said)
            .into_iter()
            .map(|(rank, total, _)| (rank, total))
            .collect();
        (found, said)
    };
    let ranks = |count: usize, total: u64| {
        (0..count)
            .map(|rank| (rank.to_string(), total))
            .collect::<Vec<_>>()
    };
    for (which, expected) in [
        ("one", ranks(2, 8 << 10)),
        ("each", ranks(4, QUARTER)),
        ("accelerate", ranks(1, 8 << 10)),
    ] {
        let (found, said) = launch(which);
        assert_eq!(found, expected, "{which}: {said:?}");
    }
    let refused = finish(&mut command(&host, examples().join("launch.sh"), &home));
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn workers_of_pytest_share_a_card() {
    let Some(interpreter) = jobs_python() else { return };
    let host = Host::new();
    let pytest = |words: &[&str]| {
        let mut pytest = python::command(&host, &interpreter, &interpreter);
        pytest
            .args([
                "-m",
                "pytest",
                "-p",
                "divvy_jobs.pytest_plugin",
                "-p",
                "no:cacheprovider",
                "-q",
                "-rP",
            ])
            .args(words)
            .arg(examples().join("test_share.py"))
            .current_dir(host.folder());
        finish(&mut pytest)
    };
    let said = succeeded(&pytest(&["-n", "4", "--divvy"]));
    assert!(said.contains("8 passed"), "{said}");
    let told = |place: u32| format!("{place}: {QUARTER} MiB");
    assert!((0..8).all(|place| said.contains(&told(place))), "{said}");
    assert!(host.slices().is_empty());
    let said = succeeded(&pytest(&["-n", "2", "--divvy", "--divvy-memory", "1GiB"]));
    assert!(
        said.contains("0: 1024 MiB") && said.contains("7: 1024 MiB"),
        "{said}"
    );

    let alone = pytest(&["--divvy"]);
    assert!(
        stderr(&alone).contains("add -n 4, or run `divvy run pytest`"),
        "{}",
        stderr(&alone)
    );
    let without = pytest(&["-p", "no:xdist", "--divvy"]);
    assert!(
        stderr(&without).contains("which is not installed"),
        "{}",
        stderr(&without)
    );
}

#[test]
fn systemd_reads_the_units() {
    let host = Host::new();
    let root = host.folder().join("root");
    let units = root.join("etc/systemd/system");
    let programs = root.join("usr/bin");
    for folder in [&units, &programs] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    for name in ["divvy", "python3"] {
        std::fs::write(programs.join(name), "#!/bin/sh\n").expect("written");
        std::fs::set_permissions(programs.join(name), PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    let deploy = workspace().join("deploy/systemd");
    for name in [
        "divvy-agent.service",
        "divvy-helper.socket",
        "divvy-helper.service",
        "divvy-slice@.service",
    ] {
        std::fs::copy(deploy.join(name), units.join(name)).expect("a copy");
    }
    for name in ["train.service", "serve.service"] {
        std::fs::copy(examples().join(name), units.join(name)).expect("a copy");
        let output = finish(
            host.command("systemd-analyze")
                .args(["verify", "--man=no", "--recursive-errors=no"])
                .arg(format!("--root={}", root.display()))
                .arg(name),
        );
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let text = std::fs::read_to_string(examples().join(name)).expect("text");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/divvy "))
            .expect("a command");
        // The same words, with a program of this machine.
        let line = line.replace("%%", "%");
        let (ours, _) = line.split_once(" -- ").expect("a program");
        if ours.contains("--slice serve") {
            succeeded(&finish(
                &mut host.divvy(["slice", "create", "serve", "--memory", "8GiB"]),
            ));
        }
        let words: Vec<&str> = ours.split(' ').collect();
        let mut run = host.divvy(words.iter().copied());
        succeeded(&finish(run.args(["--", "/bin/true"])));
    }
}

#[test]
fn the_hub_s_configuration_is_read_by_the_hub() {
    let Some(interpreter) = jobs_python() else { return };
    let host = Host::new();
    let mut show = python::command(&host, &interpreter, interpreter.with_file_name("jupyterhub"));
    show.arg("--show-config-json")
        .arg("-f")
        .arg(examples().join("jupyterhub_config.py"))
        .current_dir(host.folder());
    let said = succeeded(&finish(&mut show));
    assert!(
        said.contains("divvy_jobs.jupyterhub.DivvyLocalProcessSpawner"),
        "{said}"
    );
    let program = "from divvy_jobs.jupyterhub import DivvyLocalProcessSpawner as S; print(S.divvy_memory.help, S.class_trait_names())";
    let mut traits = python::command(&host, &interpreter, &interpreter);
    let said = succeeded(&finish(traits.args(["-c", program])));
    assert!(
        said.contains("divvy_compute") && said.contains("divvy_cap"),
        "{said}"
    );
}
