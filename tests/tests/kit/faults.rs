//! Faults inside the kit's programs: a limiter that has forgotten a function, a device that computes something else, a card that is
//! not as usual. `fault.c` plants them; nothing of it is packed or released.

use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_tests::build::binaries;
use divvy_tests::clients::compiler;
use divvy_tests::host::{finish, succeeded};
use serde_json::json;

use super::Kit;

/// Builds the library in a folder; none where there is no compiler and none is asked for.
fn library(folder: &Path) -> Option<PathBuf> {
    let library = folder.join("fault.so");
    let source = divvy_tests::build::workspace().join("tests/src/fault.c");
    let mut compile = Command::new(compiler()?);
    compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    succeeded(&finish(&mut compile));
    Some(library)
}

/// `divvy` with the fault in each program that runs in a slice.
fn planted(library: &Path, fault: &str) -> String {
    let set = format!(
        "FAULT={fault} FAULT_DRIVER={} LD_PRELOAD={}:$LD_PRELOAD exec \"$@\"",
        binaries().join("libdivvy_emulated_cuda.so").display(),
        library.display()
    );
    format!(
        "[ \"$1\" = run ] || exec $DIVVY \"$@\"\n\
         n=$#; while [ $n -gt 0 ]; do w=$1; shift; n=$((n-1))\n\
         if [ \"$w\" = -- ]; then set -- \"$@\" -- sh -c '{set}' sh; else set -- \"$@\" \"$w\"; fi; done\n\
         exec $DIVVY \"$@\""
    )
}

/// Each function that the limiter has forgotten, the part that has to find it, and what fails there.
#[test]
fn a_limiter_that_forgets_a_function_is_found_by_the_right_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = library(folder.path()) else {
        return;
    };
    for (forgotten, part, fails) in [
        (
            "cuMemAlloc_v2",
            "memory",
            &["memory.plain.limit", "memory.plain.nvml"][..],
        ),
        (
            "cuMemAllocFromPoolAsync",
            "memory",
            &["memory.pool.limit", "memory.pool.nvml"],
        ),
        (
            "cuMemCreate",
            "memory",
            &["memory.physical.limit", "memory.physical.nvml"],
        ),
        (
            "cuGraphLaunch",
            "memory",
            &["memory.graph.limit", "memory.graph.nvml"],
        ),
        ("cuIpcOpenMemHandle_v2", "memory", &["memory.ipc.limit"]),
        // Nothing of it comes back to the slice.
        ("cuMemFree_v2", "memory", &["memory.plain.freed"]),
        // The gate never closes.
        ("cuLaunchKernel", "compute", &["compute.30-70.1ms"]),
    ] {
        let kit = Kit::new(Some(&planted(&library, forgotten)));
        // Enough for the first of many races.
        let limit = if part == "compute" { "20" } else { "60" };
        let output = kit.run(&["--part", part, "--limit", limit]);
        let failing = kit.failing(part);
        for check in fails {
            assert!(
                failing.iter().any(|failing| failing == check),
                "{forgotten}: {failing:?}"
            );
        }
        // What goes another way holds.
        assert_ne!(kit.verdict(part, "memory.array.limit"), "fails", "{forgotten}");
        assert_eq!(output.status.code(), Some(1), "{forgotten}");
    }
}

#[test]
fn a_device_that_adds_wrongly_is_found_with_its_operands() {
    let kit = Kit::new(None);
    let Some(library) = library(kit.host.folder()) else {
        return;
    };
    let mut command = kit.command(&["--part", "differences"]);
    finish(command.env("LD_PRELOAD", &library).env("FAULT", "wrong sum"));
    assert_eq!(kit.verdict("differences", "differences.isa"), "fails");
    let found = kit.finding("differences", "differences.isa.1");
    assert_eq!(
        found["details"]["first"],
        json!({"type": "U32", "operands": ["0x7"], "card": "0x9", "emulated": "0x8"})
    );
}

/// What NVML tells of a card that is not as usual, over the emulated device.
#[test]
fn a_card_that_cannot_be_shared_or_errs_is_told_of_and_the_rest_runs() {
    let kit = Kit::new(None);
    let Some(library) = library(kit.host.folder()) else {
        return;
    };
    let run = |card: &str, parts: &[&str]| {
        let parts = parts.iter().flat_map(|part| ["--part", part]);
        let mut command = kit.command(&parts.collect::<Vec<_>>());
        command.args(["--limit", "60"]);
        finish(command.env("LD_PRELOAD", &library).env("FAULT", card))
    };
    let says = |part: &str, check: &str| kit.finding(part, check)["says"].to_string();

    let output = run("exclusive", &["facts", "memory", "compute", "tools", "deaths"]);
    assert!(says("facts", "facts.mode").contains("one program at a time"));
    for part in ["compute", "tools"] {
        assert_eq!(kit.verdict(part, part), "skipped");
        assert!(says(part, part).contains("--compute-mode=DEFAULT"), "{part}");
    }
    assert_eq!(kit.verdict("memory", "memory.plain.limit"), "holds");
    assert_eq!(kit.finding("memory", "memory.ipc.limit"), json!(null));
    assert_eq!(kit.verdict("deaths", "deaths.slices"), "holds");
    assert_eq!(output.status.code(), Some(0));

    run("mig", &["facts"]);
    assert_eq!(kit.verdict("facts", "facts.mig"), "skipped");
    assert!(says("facts", "facts.mig").contains("MIG mode"));

    run("errors", &["facts"]);
    let errors = kit.finding("facts", "facts.ecc");
    assert_eq!(
        (&errors["verdict"], &errors["figure"]["value"]),
        (&json!("skipped"), &json!(7.0))
    );

    let output = run("busy", &["facts", "deaths"]);
    assert!(says("facts", "facts.busy").contains("other programs use the card"));
    assert_eq!(output.status.code(), Some(0));
}

/// Whatever the disk's size, what fails is said with a reason and a hint.
#[test]
fn a_full_folder_for_temporary_files_is_named_with_a_hint() {
    let allowed = Command::new("unshare").args(["--mount", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user may make no namespace of mounts");
        return;
    }
    let kit = Kit::new(None);
    let full = kit.home.join("full");
    std::fs::create_dir(&full).expect("a folder");
    // Room for the kit's own folder, and for nothing in it; then for no file at all.
    for (size, fill) in [
        ("size=64k", "head -c 1m /dev/zero >\"$0/fill\""),
        ("nr_inodes=1", "true"),
    ] {
        let script = format!(
            "mount -t tmpfs -o {size},mode=700 none \"$0\" || exit 99\n{{ {fill}; }} 2>/dev/null\n\
             TMPDIR=$0 exec \"$@\""
        );
        let inner = kit.command(&["--part", "facts", "--part", "memory", "--limit", "20"]);
        let words: Vec<_> = inner.get_args().map(ToOwned::to_owned).collect();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(&full);
        command.arg(inner.get_program()).args(words);
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = finish(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{size}: {said}");
        assert!(said.contains("TMPDIR names another"), "{size}: {said}");
        let why = said.split("no device to ask: ").nth(1).unwrap_or_default();
        assert!(!why.starts_with(';'), "{size}: {said}");
    }
}
