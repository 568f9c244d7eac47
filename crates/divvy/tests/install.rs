//! `divvy agent install` and `uninstall` below a folder, and the units themselves.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::Host;

const FILES: [&str; 5] = [
    "usr/lib/sysusers.d/divvy.conf",
    "etc/systemd/system/divvy-helper.socket",
    "etc/systemd/system/divvy-helper.service",
    "etc/systemd/system/divvy-agent.service",
    "etc/divvy/config.toml",
];

fn units() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../deploy/systemd"]
        .iter()
        .collect()
}

fn agent(host: &Host, verb: &str, root: &Path, more: &[&str]) -> String {
    let root = root.to_str().expect("text");
    host.text(&[&["agent", verb, "--root", root], more].concat())
}

#[test]
fn what_is_installed_is_taken_away_again() {
    let host = Host::new();
    let root = host.folder().join("root");
    let said = agent(&host, "install", &root, &["--dry-run"]);
    assert_eq!(said.matches("would write").count(), FILES.len(), "{said}");
    assert!(!root.exists(), "a dry run writes nothing");
    let said = agent(&host, "install", &root, &[]);
    assert!(said.contains("not done: the user"), "{said}");
    for file in FILES {
        assert!(root.join(file).is_file(), "{file}");
    }
    let unit = std::fs::read_to_string(root.join(FILES[3])).expect("a unit");
    let program = format!("ExecStart={} agent serve", common::divvy().display());
    assert!(unit.contains(&program) && unit.contains("User=divvy"), "{unit}");
    let said = agent(&host, "install", &root, &[]);
    assert_eq!(said.matches("is there:").count(), FILES.len(), "{said}");
    let said = agent(&host, "uninstall", &root, &["--dry-run"]);
    assert_eq!(said.matches("would remove").count(), FILES.len(), "{said}");
    agent(&host, "uninstall", &root, &[]);
    for file in FILES {
        assert!(!root.join(file).exists(), "{file}");
    }
    assert!(
        !agent(&host, "uninstall", &root, &[]).contains("remove"),
        "and again"
    );
}

#[test]
fn what_a_package_put_there_is_the_packages() {
    let host = Host::new();
    let root = host.folder().join("root");
    agent(&host, "install", &root, &[]);
    // A package has the same units elsewhere, and the agent's user's file where it is.
    let packaged = root.join("usr/lib/systemd/system");
    std::fs::create_dir_all(&packaged).expect("a folder");
    for file in &FILES[1..4] {
        let name = Path::new(file).file_name().expect("a name");
        std::fs::rename(root.join(file), packaged.join(name)).expect("moved");
    }
    let said = agent(&host, "install", &root, &[]);
    assert_eq!(said.matches(", a package's").count(), 4, "{said}");
    for file in &FILES[1..4] {
        assert!(!root.join(file).exists(), "{file} would hide the package's");
    }
    agent(&host, "uninstall", &root, &[]);
    assert!(root.join(FILES[0]).is_file() && packaged.join("divvy-agent.service").is_file());
    assert!(
        !root.join(FILES[4]).exists(),
        "the settings were written by install"
    );
}

/// The helper may write control groups only where the setting needs it.
#[test]
fn the_helper_makes_groups_only_where_workers_memory_is_limited() {
    let unit = std::fs::read_to_string(units().join("divvy-helper.service")).expect("a unit");
    assert!(unit.contains("\nProtectControlGroups=yes\n"), "{unit}");
    let host = Host::new();
    let root = host.folder().join("root");
    let limits = root.join("etc/systemd/system/divvy-helper.service.d/worker-memory.conf");
    agent(&host, "install", &root, &[]);
    assert!(!limits.exists());
    let settings = root.join(FILES[4]);
    std::fs::write(&settings, "# worker_memory = \"1GiB\"\n").expect("edited");
    agent(&host, "install", &root, &[]);
    assert!(!limits.exists(), "a comment is no setting");
    std::fs::write(&settings, "run_dir = \"/run/divvy\"\nworker_memory = \"4GiB\"\n").expect("edited");
    agent(&host, "install", &root, &["--dry-run"]);
    assert!(!limits.exists(), "a dry run writes nothing");
    for _ in 0..2 {
        agent(&host, "install", &root, &[]);
        let text = std::fs::read_to_string(&limits).expect("written");
        assert!(text.contains("\n[Service]\nProtectControlGroups=no\n"), "{text}");
    }
    std::fs::write(&settings, "run_dir = \"/run/divvy\"\n").expect("edited");
    agent(&host, "install", &root, &[]);
    assert!(
        !limits.parent().expect("a folder").exists(),
        "the setting is off again"
    );
    std::fs::write(&settings, "worker_memory = \"4GiB\"\n").expect("edited");
    agent(&host, "install", &root, &[]);
    agent(&host, "uninstall", &root, &[]);
    assert!(!limits.parent().expect("a folder").exists());
}

#[test]
fn what_was_edited_stays() {
    let host = Host::new();
    let root = host.folder().join("root");
    agent(&host, "install", &root, &[]);
    let (unit, settings) = (root.join(FILES[3]), root.join(FILES[4]));
    std::fs::write(&unit, "[Service]\nExecStart=/mine\n").expect("edited");
    std::fs::write(&settings, "user_slices = 3\n").expect("edited");
    let said = agent(&host, "install", &root, &[]);
    assert!(
        said.contains("which was edited; --force") && said.contains("which is yours"),
        "{said}"
    );
    let said = agent(&host, "uninstall", &root, &[]);
    assert_eq!(said.matches("kept:").count(), 2, "{said}");
    assert!(unit.is_file() && settings.is_file());
    let said = agent(&host, "install", &root, &["--force"]);
    assert!(said.contains("did: write") && !said.contains("edited"), "{said}");
    assert!(
        std::fs::read_to_string(&unit)
            .expect("a unit")
            .contains("User=divvy")
    );
    std::fs::write(&unit, "edited again").expect("edited");
    agent(&host, "uninstall", &root, &["--force"]);
    assert!(!unit.exists());
    let text = std::fs::read_to_string(&settings).expect("there");
    assert_eq!(text, "user_slices = 3\n", "settings are never taken");
}

#[test]
fn only_root_installs_on_the_machine_itself() {
    let host = Host::new();
    let said = host.text(&["agent", "install", "--dry-run"]);
    assert!(said.contains("/etc/systemd/system/divvy-agent.service"), "{said}");
    if !rustix::process::geteuid().is_root() {
        let (_, said) = host.refused(&["agent", "install"]);
        assert!(said.contains("error[D0086]"), "{said}");
    }
}

/// What `systemd-analyze` says of a unit; nothing where it is not there.
fn analyze(words: &[&str], unit: &Path) -> Option<(bool, String)> {
    let output = Command::new("systemd-analyze")
        .args(words)
        .arg(unit)
        .output()
        .ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some((
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    ))
}

#[test]
fn the_units_are_hardened_as_far_as_systemd_asks() {
    // Below 50 it is "OK", in green; the agent and the helper are held to what they have.
    for (name, most) in [
        ("divvy-agent.service", "25"),
        ("divvy-helper.service", "40"),
        ("divvy-nri.service", "49"),
        ("divvy-slice@.service", "49"),
        ("divvy-vm-restore.service", "45"),
    ] {
        let threshold = format!("--threshold={most}");
        let words = ["security", "--offline=true", "--no-pager", threshold.as_str()];
        let Some((green, said)) = analyze(&words, &units().join(name)) else {
            return;
        };
        assert!(green, "{name}: {said}");
    }
}

#[test]
fn the_units_are_read_by_systemd_without_a_complaint() {
    let host = Host::new();
    let root = host.folder().join("root");
    agent(&host, "install", &root, &[]);
    let folder = root.join("etc/systemd/system");
    for name in [
        "divvy-helper.socket",
        "divvy-helper.service",
        "divvy-agent.service",
    ] {
        let Some((fine, said)) = analyze(&["verify", "--man=no"], &folder.join(name)) else {
            return;
        };
        // Of other units of the machine it may have its own opinion.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("divvy")).collect();
        assert!(fine && ours.is_empty(), "{name}: {said}");
    }
    // The one that `divvy vm prepare` installs, on a copy of a machine.
    let copy = host.folder().join("copy");
    for folder in ["etc", "usr/lib/systemd/system"] {
        std::fs::create_dir_all(copy.join(folder)).expect("a folder");
    }
    std::fs::write(copy.join("etc/os-release"), "ID=debian\n").expect("written");
    let text = copy.to_str().expect("text");
    let said = host.text(&["vm", "prepare", "--sysroot", text, "--apply"]);
    assert!(
        said.contains("not run: systemctl enable divvy-vm-restore.service"),
        "{said}"
    );
    let unit = copy.join("etc/systemd/system/divvy-vm-restore.service");
    if let Some((fine, said)) = analyze(&["verify", "--man=no"], &unit) {
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("divvy")).collect();
        assert!(fine && ours.is_empty(), "{said}");
    }
}
