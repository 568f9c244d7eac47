//! What `divvy agent install` puts where: each file with its content, as this build has it.

use std::path::{Path, PathBuf};

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

/// Every file, for a program at this path.
pub fn files(program: &Path) -> Vec<Installed> {
    let file = |path, text: &str, is_settings| Installed {
        path,
        text: text.replace(PROGRAM, &program.to_string_lossy()),
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

/// The program that the units are to start.
pub fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PROGRAM.into())
}
