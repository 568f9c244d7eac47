//! `python -m divvy` of the wheel, wherever pip has put it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// The package's files as pip leaves them: the module in `site`, the command in `bin`, and what pip writes down of it.
fn install(site: &Path, bin: &Path, recorded: &str) {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/packages/wheel/main.py");
    let about = site.join("divvy-9.9.dist-info");
    for folder in [&site.join("divvy"), &about, bin] {
        fs::create_dir_all(folder).expect("a folder");
    }
    fs::write(site.join("divvy/__init__.py"), "").expect("written");
    fs::copy(module, site.join("divvy/__main__.py")).expect("copied");
    fs::write(
        about.join("METADATA"),
        "Metadata-Version: 2.1\nName: divvy\nVersion: 9.9\n",
    )
    .expect("written");
    fs::write(about.join("RECORD"), format!("{recorded},,\n")).expect("written");
    let command = bin.join("divvy");
    fs::write(&command, "#!/bin/sh\necho \"$0 $*\"\n").expect("written");
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn python(variable: &str, value: &Path) -> Output {
    Command::new("python3")
        .args(["-m", "divvy", "--version"])
        .env_remove("PYTHONPATH")
        .env_remove("PYTHONHOME")
        .env(variable, value)
        .output()
        .expect("python starts")
}

/// `pythonX.Y`.
fn release() -> String {
    let said = Command::new("python3")
        .args(["-c", "import sys; print('python%d.%d' % sys.version_info[:2])"])
        .output()
        .expect("python starts");
    String::from_utf8(said.stdout).expect("text").trim().to_owned()
}

#[test]
fn the_module_finds_the_command_of_its_own_installation() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = fs::canonicalize(folder.path()).expect("a path");
    let site = base.join("lib").join(release()).join("site-packages");
    install(&site, &base.join("bin"), "../../../bin/divvy");
    fs::create_dir_all(base.join("lib/divvy")).expect("a folder");
    // `pip install --user` and `--prefix`.
    for (variable, value) in [("PYTHONUSERBASE", &base), ("PYTHONPATH", &site)] {
        let output = python(variable, value);
        let said = String::from_utf8_lossy(&output.stdout);
        let wanted = format!("{} --version\n", base.join("bin/divvy").display());
        assert_eq!(said, wanted, "{variable}: {output:?}");
    }
}

#[test]
fn an_installation_without_the_libraries_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = fs::canonicalize(folder.path()).expect("a path");
    // What `--target` leaves: a record of where the command was before it was moved, and no `lib`.
    install(&base, &base.join("bin"), "../../bin/divvy");
    let output = python("PYTHONPATH", &base);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("install it with --prefix"),
        "{output:?}"
    );
    fs::remove_file(base.join("bin/divvy")).expect("removed");
    let output = python("PYTHONPATH", &base);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("not where this package was installed"),
        "{output:?}"
    );
}
