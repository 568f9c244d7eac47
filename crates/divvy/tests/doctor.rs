//! `divvy doctor` where there are GPUs: an NVML loaded as NVIDIA's would be, and tools of the vendor's that answer, hang or
//! print rubbish.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::Host;
use divvy_host::built::Built;
use serde_json::Value;

/// A folder of tools: name and script.
fn tools(host: &Host, scripts: &[(&str, &str)]) -> PathBuf {
    let folder = host.folder().join("tools");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, script) in scripts {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    folder
}

/// `divvy` on a machine with a GPU, as far as NVML and the tools in front of `PATH` tell.
fn on_a_gpu(host: &Host, tools: &Path, words: &[&str]) -> std::process::Output {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = tools.as_os_str().to_owned();
    all.push(":");
    all.push(path);
    host.divvy(words)
        .env_remove("DIVVY_EMULATED")
        .env(
            "DIVVY_NVML",
            common::divvy().with_file_name("libdivvy_emulated_nvml.so"),
        )
        .env("PATH", all)
        .output()
        .expect("divvy starts")
}

/// `check: status: detail; hint` of every check of a category.
fn report(output: &std::process::Output, category: &str) -> Vec<String> {
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let items = report["items"].as_array().expect("checks").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    items
        .filter(|item| item["category"] == category)
        .map(|item| {
            format!(
                "{}: {}: {}; {}",
                text(&item["check"]),
                text(&item["status"]),
                text(&item["detail"]),
                text(&item["hint"])
            )
        })
        .collect()
}

fn nvcc(release: &str, codes: &str) -> String {
    format!(
        "case $1 in\n--version) echo 'Cuda compilation tools, release {release}, V{release}.1';;\n--list-gpu-code) printf \
         '{codes}';;\nesac"
    )
}

#[test]
fn the_toolkits_runtime_ptx_and_machine_code_are_compared_with_the_driver() {
    let host = Host::new();
    let told = |release: &str, codes: &str| {
        let folder = tools(&host, &[("nvcc", &nvcc(release, codes))]);
        report(&on_a_gpu(&host, &folder, &["doctor", "-o", "json"]), "versions")
    };
    let all = told("11.8", "sm_80\\nsm_90\\n");
    let begins = |checks: &[String], words: &[&str]| {
        assert_eq!(checks.len(), words.len(), "{checks:?}");
        for (check, words) in checks.iter().zip(words) {
            assert!(check.starts_with(words), "{checks:?}");
        }
    };
    begins(
        &all,
        &[
            "toolkit: ok",
            "runtime: ok",
            "PTX: ok",
            "cubin: ok: devices of 9.0 run machine code",
        ],
    );
    let old = told("11.8", "sm_70\\nsm_80\\n");
    begins(
        &old,
        &[
            "toolkit: ok",
            "runtime: ok",
            "PTX: ok",
            "cubin: warn: the toolkit has no machine code for",
        ],
    );
    let new = told("99.0", "sm_100\\n");
    begins(
        &new,
        &[
            "toolkit: ok",
            "runtime: fail",
            "PTX: warn",
            "cubin: warn: nothing that the toolkit compiles runs",
        ],
    );
    assert!(new[1].contains("install a newer driver"), "{new:?}");
}

#[test]
fn tools_that_print_rubbish_or_hang_are_told_of() {
    let host = Host::new();
    let rubbish = tools(&host, &[("nvcc", "printf '\\033[2Jbanana\\n'")]);
    let told = report(&on_a_gpu(&host, &rubbish, &["doctor", "-o", "json"]), "versions");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("toolkit: warn: nvcc does not tell its release: ?[2Jbanana"),
        "{told:?}"
    );
    let hanging = tools(&host, &[("nvcc", "exec sleep 600")]);
    let told = report(&on_a_gpu(&host, &hanging, &["doctor", "-o", "json"]), "versions");
    assert!(
        told[0].starts_with("toolkit: warn: `nvcc` failed: it did not end within"),
        "{told:?}"
    );

    // A control program of MPS that never answers, or answers with what cannot be parsed.
    let list = on_a_gpu(&host, &rubbish, &["devices", "-q"]);
    let uuid = String::from_utf8(list.stdout).expect("text").trim().to_owned();
    let pipe = host.run_dir().join("mps").join(&uuid).join("pipe");
    std::fs::create_dir_all(&pipe).expect("a folder");
    std::fs::write(pipe.join("control"), "").expect("a daemon's pipe");
    let mps = "nvidia-cuda-mps-control";
    let good = ("nvcc", nvcc("11.8", "sm_90\\n"));
    let with = |script: &str| tools(&host, &[(good.0, &good.1), (mps, script)]);
    let hanging = on_a_gpu(&host, &with("exec sleep 600"), &["doctor", "-o", "json"]);
    assert_eq!(hanging.status.code(), Some(1));
    let told = report(&hanging, "isolation").join("\n");
    assert!(
        told.contains("MPS: fail: [D00") && told.contains("did not end within"),
        "{told}"
    );
    let output = on_a_gpu(&host, &with("echo banana"), &["mps", "status"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("answers `a list of processes` with what is not understood") && said.contains("banana")
    );
    let fine = on_a_gpu(&host, &with("true"), &["doctor", "-o", "json"]);
    let told = report(&fine, "isolation").join("\n");
    assert!(told.contains("MPS: ok: 1 daemons of ours run"), "{told}");
    assert!(
        told.contains("`hardware` is opened by: divvy gpu mig apply --device 0"),
        "{told}"
    );
}

#[test]
fn a_captured_machine_is_examined_level_by_level() {
    let host = Host::new();
    let examine = |built: &Built| {
        let root = built.root().to_str().expect("a path");
        host.divvy(&["doctor", "-o", "json", "--sysroot", root])
            .output()
            .expect("divvy starts")
    };
    let amd = Built::mi300x(host.folder().join("amd"), 1);
    let levels = report(&examine(&amd), "isolation");
    assert_eq!(levels.len(), 8);
    assert!(
        levels[0].contains("reaches `env`") && levels[0].contains("divvy gpu partition set CPX/NPS4"),
        "{levels:?}"
    );
    let h100 = Built::h100(host.folder().join("h100"), 2);
    h100.file(
        "dev/kmsg",
        "3,2,2,-;NVRM: Xid (PCI:0000:18:00): 79, pid=7, GPU has fallen off the bus.\n",
    );
    let output = examine(&h100);
    let levels = report(&output, "isolation").join("\n");
    assert!(
        levels.contains("reaches `cooperative`")
            && levels.contains("`divvy run --isolation supervised`")
            && levels.contains("reaches `hardware`"),
        "{levels}"
    );
    let health = report(&output, "machine").join("\n");
    assert!(
        health.contains("health: warn") && health.contains("Xid 79"),
        "{health}"
    );
    assert_eq!(report(&output, "devices"), ["NVIDIA: ok: driver 550.54.15; "]);

    let vfio = Built::passed_through(host.folder().join("vfio"));
    vfio.function_file(
        "0000:41:00.0",
        "nvidia/creatable_vgpu_types",
        "ID    : vGPU Name\n558   : NVIDIA L40S-4Q\n559   : NVIDIA L40S-8Q\n",
    );
    let levels = report(&examine(&vfio), "isolation");
    assert!(levels[0].contains("reaches `vm`"), "{levels:?}");
    assert_eq!(
        levels.last().expect("a check"),
        "vGPU: ok: 2 types; `divvy gpu vgpu list` shows them; "
    );
    let (status, said) = host.refused(&["doctor", "--sysroot", "/nonexistent"]);
    assert!(status == 2 && said.contains("no folder"), "{said}");
}

#[test]
fn an_nvml_that_hangs_is_given_up() {
    let host = Host::new();
    let source = host.folder().join("hangs.rs");
    // As in a process that waits for a driver after an Xid: the call never comes back.
    let text = "#[unsafe(no_mangle)] pub extern \"C\" fn nvmlInit_v2() -> i32 { loop { std::thread::park() } }\n\
                #[unsafe(no_mangle)] pub extern \"C\" fn nvmlInit() -> i32 { nvmlInit_v2() }\n";
    std::fs::write(&source, text).expect("a file");
    let library = host.folder().join("libhangs.so");
    let compiler = PathBuf::from(env!("CARGO")).with_file_name("rustc");
    let built = std::process::Command::new(compiler)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .arg(&library)
        .arg(&source)
        .output()
        .expect("rustc starts");
    assert!(built.status.success(), "{built:?}");
    for words in [&["devices"][..], &["mig", "list"]] {
        let output = host
            .divvy(words)
            .env_remove("DIVVY_EMULATED")
            .env("DIVVY_NVML", &library)
            .output()
            .expect("divvy starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("does not answer within") && said.contains("hint:"),
            "{said}"
        );
    }
}
