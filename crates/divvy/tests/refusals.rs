//! Bad input: each gets its code, a sentence and a hint, and nothing is left behind.

mod common;

use std::os::unix::fs::{PermissionsExt, chown};

use common::Host;
use serde_json::Value;

/// Exit status and code of `divvy run FLAGS -- true`.
fn run_refused(host: &Host, flags: &[&str]) -> (i32, String) {
    host.refused(&[&["run"], flags, &["--", "true"]].concat())
}

#[test]
fn sizes_that_are_none() {
    let host = Host::new();
    for memory in ["4096", "0GiB", "0%", "-1GiB", "101%", "lots", "4 parsecs", ""] {
        let (status, said) = run_refused(&host, &["--memory", memory]);
        assert_eq!(status, 125, "{memory}: {said}");
        assert!(said.starts_with("error[D0002]: "), "{memory}: {said}");
        assert!(said.contains("hint: "), "{memory}: {said}");
    }
    let (_, bare) = run_refused(&host, &["--memory", "4096"]);
    assert!(bare.contains("`4096MiB`"), "{bare}");
    assert!(
        !host.run_dir().exists(),
        "nothing was made for a command line that makes no sense"
    );
}

#[test]
fn a_machine_of_its_own_where_there_can_be_none() {
    let host = Host::new();
    let tree = divvy_host::built::Built::desktop(host.folder().join("desktop"));
    tree.remove("sys/kernel/iommu_groups");
    let output = host
        .divvy(&["run", "--isolation", "vm", "--", "true"])
        .env("DIVVY_SYSROOT", tree.root())
        .output()
        .expect("divvy starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.starts_with("error[D0022]: this host cannot give a device to a virtual machine: ")
            && said.contains("divvy vm doctor"),
        "{said}"
    );
}

#[test]
fn devices_that_are_none() {
    let host = Host::new();
    for (selector, code) in [
        ("7", "D0011"),
        ("GPU-ffff", "D0011"),
        ("0000:01:00.0", "D0011"),
        ("first", "D0004"),
        ("emulated:b9000", "D0003"),
    ] {
        let (status, said) = run_refused(&host, &["--device", selector, "--memory", "1GiB"]);
        assert_eq!(status, 125, "{said}");
        assert!(said.contains(&format!("error[{code}]")), "{selector}: {said}");
        assert!(said.contains("hint: "), "{said}");
    }
    let several = host
        .divvy(&["run", "--device", "GPU-", "--memory", "1GiB", "--", "true"])
        .output()
        .expect("divvy starts");
    assert!(String::from_utf8_lossy(&several.stderr).contains("error[D0004]"));
}

#[test]
fn more_than_there_is() {
    let host = Host::new();
    let (status, said) = run_refused(&host, &["--memory", "1000GiB"]);
    assert_eq!(status, 125);
    assert!(
        said.contains("error[D0013]") && said.contains("1000 GiB"),
        "{said}"
    );

    let _holder = host.idle("holder", "60GiB");
    let (status, said) = run_refused(&host, &["--memory", "30GiB"]);
    assert_eq!(status, 125);
    assert!(
        said.contains("error[D0012]: cannot reserve 30 GiB on GPU-"),
        "{said}"
    );
    assert!(said.contains("slice holder holds 60 GiB"), "{said}");
    assert!(said.contains("hint: 19.6 GiB is free; see divvy ps"), "{said}");
    assert_eq!(host.slices().len(), 1, "the holder alone");

    let (status, said) = host.refused(&["resize", "holder", "--memory", "100GiB"]);
    assert_eq!((status, said.contains("error[D0013]")), (1, true), "{said}");
}

#[test]
fn programs_that_cannot_run() {
    let host = Host::new();
    let (status, said) = host.refused(&["run", "--memory", "1GiB", "--", ""]);
    assert!(status == 127 && said.contains("error[D0052]"), "{status}: {said}");
    let plain = host.folder().join("plain");
    std::fs::write(&plain, "no program").expect("written");
    for (program, expected, code) in [
        ("no-such-program-anywhere", 127, "D0052"),
        ("/no/such/program", 127, "D0052"),
        ("./missing", 127, "D0052"),
        ("/tmp", 126, "D0053"),
        ("./plain", 126, "D0053"),
    ] {
        let (status, said) = host.refused(&["run", "--memory", "1GiB", "--", program]);
        assert_eq!(status, expected, "{program}: {said}");
        assert!(said.contains(&format!("error[{code}]")), "{program}: {said}");
    }
    // The kernel finds out only when it tries: the interpreter is missing.
    std::fs::write(&plain, "#!/no/such/interpreter\n").expect("written");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let (status, said) = host.refused(&["run", "--memory", "1GiB", "--", "./plain"]);
    assert!(status == 127 && said.contains("error[D0052]"), "{status} {said}");
    assert!(said.contains("`/no/such/interpreter`"), "{said}");
    common::until("no slice is left", || host.slices().is_empty());
}

#[test]
fn run_directories_that_cannot_be_used() {
    let host = Host::new();
    let file = host.folder().join("file");
    std::fs::write(&file, "").expect("written");
    let open = host.folder().join("open");
    std::fs::create_dir(&open).expect("made");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    let spaced = host.folder().join("a b");
    let long = host.folder().join("x".repeat(100));
    let mut cases = vec![
        (file.join("run"), "D0040"),
        (file.clone(), "D0040"),
        (open, "D0040"),
        ("/proc/divvy".into(), "D0040"),
        (spaced, "D0041"),
        (long, "D0041"),
    ];
    let foreign = host.folder().join("foreign");
    std::fs::create_dir(&foreign).expect("made");
    if chown(&foreign, Some(12345), None).is_ok() {
        cases.push((foreign, "D0040"));
    }
    for (path, code) in cases {
        let output = host
            .divvy(&["run", "--memory", "1GiB", "--", "true"])
            .env("DIVVY_RUN_DIR", &path)
            .output()
            .expect("divvy starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{}: {said}", path.display());
        assert!(
            said.contains(&format!("error[{code}]")),
            "{}: {said}",
            path.display()
        );
        assert!(said.contains("hint: "), "{said}");
    }
    // A command that only looks makes no directory, but does not take a file for one without slices.
    for verb in ["ps", "devices"] {
        let looked = host.divvy(&[verb]).env("DIVVY_RUN_DIR", &file).output();
        let looked = looked.expect("divvy starts");
        let said = String::from_utf8_lossy(&looked.stderr);
        assert!(said.contains("error[D0040]"), "{verb}: {looked:?}");
        assert_eq!(looked.status.code(), Some(4), "{verb}: {said}");
    }
    assert_eq!(host.text(&["ps", "--quiet"]), "", "no slice, no line");
}

#[test]
fn what_cannot_be_enforced_is_refused_or_counted() {
    let host = Host::new();
    let (_, said) = run_refused(&host, &["--memory", "1GiB", "--isolation", "vm"]);
    assert!(said.contains("error[D0001]: --memory has no effect"), "{said}");
    // A host that can give a whole GPU to a machine asks for the system that is to run there.
    let (_, said) = run_refused(&host, &["--isolation", "vm"]);
    assert!(said.contains("error[D0022]") || said.contains("--root"), "{said}");

    let output = host.finish(&[
        "run",
        "--memory",
        "1GiB",
        "--isolation",
        "vm",
        "--policy",
        "best-effort",
        "--",
        "true",
    ]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not enforced: the `vm` isolation"), "{said}");
    assert_eq!(host.json(&["agent", "status"])["bypass_total"], 1);

    // A compute share holds, and nothing is said of it.
    let output = host.finish(&["run", "--memory", "1GiB", "--compute", "30%", "--", "true"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("not enforced"), "{said}");
}

#[test]
fn slices_that_are_none() {
    let host = Host::new();
    for words in [
        &["inspect", "absent"][..],
        &["resize", "absent", "--memory", "1GiB"],
        &["kill", "absent", "--yes"],
        &["inspect", "../../etc"],
    ] {
        let (status, said) = host.refused(words);
        assert_eq!(
            (status, said.contains("error[D0020]")),
            (1, true),
            "{words:?}: {said}"
        );
    }
    let _tenant = host.idle("taken", "1GiB");
    let (_, said) = run_refused(&host, &["--name", "taken", "--memory", "1GiB"]);
    assert!(said.contains("error[D0021]"), "{said}");
    let (_, said) = run_refused(&host, &["--name", "a b", "--memory", "1GiB"]);
    assert!(said.contains("error[D0023]"), "{said}");
}

#[test]
fn drivers_that_are_none() {
    let host = Host::new();
    for driver in ["/no/such/libcuda.so.1", "/tmp", "/bin/sh", "/etc/passwd"] {
        let (status, said) = run_refused(&host, &["--driver", driver, "--memory", "1GiB"]);
        assert_eq!((status, said.contains("error[D0051]")), (125, true), "{said}");
    }
    let own = common::divvy().with_file_name("libdivvy_limit_cuda.so");
    let (_, said) = run_refused(&host, &["--driver", &own.to_string_lossy(), "--memory", "1GiB"]);
    assert!(said.contains("Divvy's own limiter"), "{said}");
    let emulated = own.with_file_name("libdivvy_emulated_cuda.so");
    host.text(&[
        "run",
        "--driver",
        &emulated.to_string_lossy(),
        "--memory",
        "1GiB",
        "--",
        "true",
    ]);
}

#[test]
fn settings_that_are_none() {
    let host = Host::new();
    let file = host.folder().join("config/divvy/config.toml");
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    std::fs::write(&file, "colour = true\n").expect("written");
    let (status, said) = host.refused(&["ps"]);
    assert_eq!((status, said.contains("error[D0003]")), (2, true), "{said}");
    std::fs::write(&file, "memory = 4096\n").expect("written");
    let (status, said) = run_refused(&host, &[]);
    assert_eq!((status, said.contains("error[D0002]")), (125, true), "{said}");
    assert!(said.contains("config.toml"), "the place is named: {said}");
    std::fs::remove_file(&file).expect("removed");
    // A folder's own file is for `run`, and says what is asked for, never what is loaded.
    std::fs::write(host.folder().join("divvy.toml"), "driver = \"/tmp/evil.so\"\n").expect("written");
    host.text(&["ps"]);
    let (_, said) = run_refused(&host, &["--memory", "1GiB"]);
    assert!(
        said.contains("error[D0003]") && said.contains("may not set `driver`"),
        "{said}"
    );
}

#[test]
fn refusals_are_json_where_output_is() {
    let host = Host::new();
    let output = host.finish(&["run", "-o", "json", "--memory", "4096", "--", "true"]);
    let error: Value = serde_json::from_slice(&output.stderr).expect("one document");
    assert_eq!(error["apiVersion"], "divvy/v1");
    assert_eq!(
        (error["kind"].as_str(), error["code"].as_str()),
        (Some("Error"), Some("D0002"))
    );
    assert!(error["hint"].as_str().expect("a hint").contains("4096MiB"));
    let usage = host.finish(&["ps", "--what", "-o", "json"]);
    let error: Value = serde_json::from_slice(&usage.stderr).expect("one document");
    assert_eq!(
        (error["code"].as_str(), usage.status.code()),
        (Some("D0001"), Some(2))
    );
    let (status, said) = host.refused(&["agent", "status"]);
    assert_eq!((status, said.contains("error[D0030]")), (3, true), "{said}");
}

#[test]
fn a_taken_name_and_a_stale_runtime_directory_say_what_to_do() {
    let host = Host::new();
    host.text(&["slice", "create", "kept", "--memory", "1GiB"]);
    let (_, said) = host.refused(&["slice", "create", "kept", "--memory", "1GiB"]);
    // There NAME is no flag.
    assert!(
        said.contains("error[D0021]") && said.contains("another name") && !said.contains("--name"),
        "{said}"
    );
    let output = host
        .divvy(&[
            "run",
            "--run-dir",
            "/proc/nope/divvy",
            "--memory",
            "1GiB",
            "--",
            "true",
        ])
        .env("XDG_RUNTIME_DIR", "/proc/nope")
        .output()
        .expect("divvy starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("error[D0040]") && said.contains("XDG_RUNTIME_DIR names `/proc/nope`"),
        "{said}"
    );
}

#[test]
fn one_process_is_no_plural() {
    let host = Host::new();
    host.text(&["slice", "create", "kept", "--memory", "1GiB"]);
    let mut run = host
        .divvy(&["run", "--slice", "kept", "--", "sleep", "600"])
        .spawn()
        .expect("divvy starts");
    common::until("it runs", || host.slice("kept")["state"] == "running");
    let (_, said) = host.refused(&["slice", "delete", "kept"]);
    assert!(
        said.contains("a process lives in slice `kept`") || said.contains("2 processes live"),
        "{said}"
    );
    assert!(!said.contains("1 processes"), "{said}");
    common::kill(run.id(), "TERM");
    run.wait().expect("it ends");
}
