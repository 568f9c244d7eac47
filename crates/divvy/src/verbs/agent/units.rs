//! What `divvy agent install` puts where: each file with its content, as this build has it.

use std::path::Path;

use divvy_agent::root_may_believe;
use divvy_model::{Code, Fault};

/// Where the units say that the program is.
const PROGRAM: &str = "/usr/bin/divvy";

/// A file that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its absolute path, below the root of the machine.
    pub path: &'static str,
    /// What it holds.
    pub text: String,
    /// It is the administrator's once it is there: never overwritten, and removed only as it was written.
    pub is_settings: bool,
}

/// The units, in the order in which they are started. They end in the opposite one.
pub const UNITS: [&str; 2] = ["divvy-helper.socket", "divvy-agent.service"];

/// Every file, for a program that the units name so.
pub fn files(program: &str) -> Vec<Installed> {
    let file = |path, text: &str, is_settings| Installed {
        path,
        text: text.replace(PROGRAM, program),
        is_settings,
    };
    vec![
        file(
            "/usr/lib/sysusers.d/divvy.conf",
            include_str!("../../../../../deploy/systemd/sysusers.d/divvy.conf"),
            false,
        ),
        file(
            "/etc/systemd/system/divvy-helper.socket",
            include_str!("../../../../../deploy/systemd/divvy-helper.socket"),
            false,
        ),
        file(
            "/etc/systemd/system/divvy-helper.service",
            include_str!("../../../../../deploy/systemd/divvy-helper.service"),
            false,
        ),
        file(
            "/etc/systemd/system/divvy-agent.service",
            include_str!("../../../../../deploy/systemd/divvy-agent.service"),
            false,
        ),
        file("/etc/divvy/config.toml", SETTINGS, true),
    ]
}

/// What lets the helper make control groups, which it needs for the setting `worker_memory` alone.
pub fn worker_memory() -> Installed {
    Installed {
        path: "/etc/systemd/system/divvy-helper.service.d/worker-memory.conf",
        text: include_str!("../../../../../deploy/systemd/worker-memory.conf").to_owned(),
        is_settings: false,
    }
}

/// Whether settings limit the memory of workers. Settings that are not understood do not: an agent does not start with them.
pub fn limits_workers(settings: &str) -> bool {
    let table: Option<toml::Table> = settings.parse().ok();
    table.is_some_and(|table| table.contains_key("worker_memory"))
}

/// The settings of a machine whose agent was installed.
const SETTINGS: &str = "\
# Written by `divvy agent install`; yours from now on. `divvy config show` tells what may stand here.
run_dir = \"/run/divvy\"
admit_others = true
";

/// This program, as units name it. `is_own` says that it is this machine that starts them, and no package's or image's folder.
///
/// # Errors
/// As [`named`].
pub fn program(is_own: bool) -> Result<String, Fault> {
    named(
        &std::env::current_exe().unwrap_or_else(|_| PROGRAM.into()),
        is_own,
    )
}

/// A program as units name it.
///
/// # Errors
/// [`Code::Privilege`]: another user could put another program in its place, and systemd would start that as root. Or its path holds
/// characters that mean more than themselves in a unit.
pub fn named(program: &Path, is_own: bool) -> Result<String, Fault> {
    let refused = |why: String| {
        Fault::new(
            Code::Privilege,
            format!("units cannot start `{}`", program.display()),
        )
        .cause(why)
        .hint("install Divvy's package, or copy the folder with `divvy` to /usr/local/bin as root, and start it from there")
    };
    if is_own {
        root_may_believe(program).map_err(refused)?;
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-@:,~=".contains(&byte);
    let text = program.to_str().filter(|text| text.bytes().all(is_plain));
    let text =
        text.ok_or_else(|| refused("its path has characters that units read as more than text".into()))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn units_start_no_program_that_another_user_could_replace() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("divvy");
        fs::write(&program, "").expect("a file");
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(named(&program, true).is_ok(), is_root);
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("a mode");
        let refused = named(&program, true).expect_err("all may write there");
        assert_eq!(refused.code, Code::Privilege);
        // A package's folder is made by any user, and unpacked by root.
        assert_eq!(named(&program, false).as_deref(), Ok(&*program.to_string_lossy()));
    }

    #[test]
    fn a_units_program_is_one_plain_word() {
        for path in [
            "/opt/100%/divvy",
            "/opt/my tools/divvy",
            "/opt/$HOME/divvy",
            "/opt/a\nExecStart=/x",
        ] {
            assert!(named(Path::new(path), false).is_err(), "{path}");
        }
        assert!(named(Path::new("/opt/divvy-0.1/bin/divvy"), false).is_ok());
    }
}
