//! Captured machines and MIG files as an attacker would make them: nothing outside is read or written, nothing
//! hangs, and nothing reaches the terminal but words.

mod common;

use std::os::unix::fs::symlink;
use std::path::Path;

use common::Host;
use divvy_host::built::Built;
use rustix::fs::{CWD, FileType, Mode, mknodat};

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
}

#[test]
fn links_fifos_and_endless_files_of_a_captured_machine_do_no_harm() {
    let host = Host::new();
    let built = Built::mi300x(host.folder().join("machine"), 1);
    let function = built
        .root()
        .join("sys/devices/pci0000:04/0000:04:01.0/0000:05:00.0");
    let secret = host.folder().join("secret");
    std::fs::write(&secret, "SPX").expect("a file");
    let replaced = |name: &str| {
        let path = function.join(name);
        let _none = std::fs::remove_file(&path);
        path
    };
    symlink(&secret, replaced("product_name")).expect("a link");
    symlink(&secret, replaced("current_compute_partition")).expect("a link");
    fifo(&replaced("current_memory_partition"));
    symlink("/dev/zero", replaced("mem_info_vram_used")).expect("a link");
    let large = std::fs::File::create(replaced("local_cpulist")).expect("a file");
    large.set_len(1 << 40).expect("a hole");
    let second = built
        .root()
        .join("sys/devices/pci0000:25/0000:25:01.0/0000:26:00.0");
    std::fs::write(second.join("product_name"), "\x1b[2J\x1b]0;mine\x07 evil\n").expect("a file");
    symlink("loop", built.root().join("sys/class/kfd/kfd/topology/nodes/77")).expect("a link");
    let root = built.root().to_str().expect("a path").to_owned();
    let devices = host.json(&["devices", "--sysroot", &root]);
    let first = &devices["items"][0];
    assert_eq!(devices["items"].as_array().expect("a list").len(), 8);
    assert_eq!(
        first["name"], "AMD Instinct MI300X",
        "by its PCI id: the link is not followed"
    );
    assert!(
        first["hardware"]["partition"].is_null() && first["hardware"]["cpu_list"].is_null(),
        "{first}"
    );
    for words in [
        &["devices", "-o", "wide"][..],
        &["topology"],
        &["doctor"],
        &["partition", "list"],
    ] {
        let output = host.finish(&[words, &["--sysroot", &root]].concat());
        assert!(output.status.success(), "{words:?}: {output:?}");
        let text = [output.stdout, output.stderr].concat();
        assert!(!text.contains(&0x1b) && !text.contains(&7), "{words:?}");
    }
    let (_, said) = host.refused(&["partition", "set", "CPX", "--yes", "--sysroot", &root]);
    assert!(said.contains("hint:"), "{said}");
    assert_eq!(
        std::fs::read_to_string(&secret).expect("a file"),
        "SPX",
        "nothing is written through a link"
    );
    // A tree that is nothing but a link to the machine's own.
    let outer = host.folder().join("outer");
    std::fs::create_dir(&outer).expect("a folder");
    symlink(built.root().join("sys"), outer.join("sys")).expect("a link");
    let outer = outer.to_str().expect("a path");
    assert_eq!(
        host.json(&["devices", "--sysroot", outer])["items"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
    for (name, kind) in [("vgpu", "list"), ("partition", "list")] {
        host.text(&[name, kind, "--sysroot", outer]);
    }
}

#[test]
fn mig_files_that_never_end_or_are_none_are_refused() {
    let host = Host::new();
    let at = |name: &str| host.folder().join(name);
    fifo(&at("fifo"));
    std::fs::write(at("bytes"), [0xff, 0xfe, 0]).expect("a file");
    std::fs::write(at("large"), vec![b'#'; (1 << 20) + 1]).expect("a file");
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
    std::fs::write(at("bomb"), bomb).expect("a file");
    std::fs::write(at("deep"), "[".repeat(100_000)).expect("a file");
    let nested = "version: v1\nmig-configs:\n  one:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {\"1g.10gb\\e[2J\": 1}\n";
    std::fs::write(at("words"), nested).expect("a file");
    let many = "version: v1\nmig-configs:\n  one:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.10gb: 4294967295}\n";
    std::fs::write(at("many"), many).expect("a file");
    let path = |name: &str| match name.starts_with('/') {
        true => name.to_owned(),
        false => at(name).to_str().expect("a path").to_owned(),
    };
    for name in [
        "fifo",
        "bytes",
        "large",
        "bomb",
        "deep",
        "words",
        "many",
        "none",
        "/dev/zero",
        "/",
        "/proc/self/mem",
    ] {
        for words in [&["--dry-run"][..], &["--yes"]] {
            let file = path(name);
            let (status, said) = host.refused(&[&["mig", "apply", "--file", file.as_str()], words].concat());
            assert!(status == 1 || status == 2, "{name}: {said}");
            assert!(
                said.contains("error[D00") && said.contains("hint:"),
                "{name}: {said}"
            );
            assert!(!said.contains('\x1b'), "{name}");
        }
    }
    assert_eq!(
        host.json(&["mig", "list"])["items"][0]["mig_mode"],
        false,
        "nothing was changed"
    );
}

#[test]
fn malformed_lists_of_instances_are_refused_at_once() {
    let host = Host::new();
    let long = vec!["1c.7g.80gb"; 5000].join(",");
    let huge = format!("{}c.7g.80gb", "9".repeat(400));
    for list in [
        long.as_str(),
        &huge,
        "1c.",
        "c.3g.40gb",
        "1c.1c.3g.40gb",
        ":",
        "19:999",
        "-1",
        "\u{202e}3g",
        "1c.\x1b[2J",
    ] {
        let words = ["mig", "apply", "--device", "0", "--dry-run", "--instances", list];
        let output = host.finish(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("error[D00"),
            "{list:.40}: {said}"
        );
        assert!(!said.contains('\x1b'), "{list:.40}");
    }
}
