//! `divvy agent install` and `uninstall`: the agent's user, its units and its configuration, put in place and taken away.
//! A file that an administrator has edited stays as it is.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy_model::{Code, Fault};
use nix::unistd::User;

use super::split::USER;
use super::units::{Installed, UNITS, files, limits_workers, program, worker_memory};
use crate::output;

/// Flags of `divvy agent install` and `uninstall`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Also where a unit was edited since it was installed
    #[arg(long)]
    force: bool,
    /// Put the files below this folder, make no user and start nothing: for packages and images
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Args {
    /// Where a file is to be.
    fn place(&self, path: &str) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.trim_start_matches('/')),
            None => path.into(),
        }
    }

    fn check(&self) -> Result<(), Fault> {
        if self.root.is_some() || self.dry_run || rustix::process::geteuid().is_root() {
            return Ok(());
        }
        Err(Fault::new(
            Code::Privilege,
            "only root may install or remove the machine's agent",
        )
        .hint("use sudo; --dry-run shows what would be done; each user may run an agent without all this"))
    }

    /// Whether systemd runs this machine, and it is this machine that is meant.
    fn has_systemd(&self) -> bool {
        self.root.is_none() && Path::new("/run/systemd/system").is_dir()
    }

    /// Does a step, or says what it would be.
    fn step(&self, words: &str, step: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
        if self.dry_run {
            return output::print(&format!("would {words}"));
        }
        step()?;
        output::print(&format!("did: {words}"))
    }
}

/// Puts it in place. Existing files stay.
pub fn install(args: &Args) -> Result<u8, Fault> {
    args.check()?;
    let files = files(&program(args.root.is_none() && !args.dry_run)?);
    for file in &files {
        install_file(args, file)?;
    }
    let is_other_helper = install_limits(args)?;
    if args.root.is_some() {
        output::print("not done: the user and the units' start, which belong to a running machine")?;
        return Ok(0);
    }
    if User::from_name(USER).ok().flatten().is_none() {
        args.step(&format!("make the user `{USER}`"), make_user)?;
    }
    if !args.has_systemd() {
        output::print(
            "not done: systemd does not run here; start `divvy agent serve` as root, which makes a helper and an agent of it",
        )?;
        return Ok(0);
    }
    args.step("have systemd read its units again", || {
        systemctl(&["daemon-reload"])
    })?;
    for unit in UNITS {
        args.step(&format!("enable and start {unit}"), || {
            systemctl(&["enable", "--now", unit])
        })?;
    }
    if is_other_helper {
        // It was started before its unit said what it may.
        args.step("start the helper again where it runs", || {
            systemctl(&["try-restart", "divvy-helper.service"])
        })?;
    }
    Ok(0)
}

/// Takes it away again, the units first. Slices go on, and keep their limits.
pub fn uninstall(args: &Args) -> Result<u8, Fault> {
    args.check()?;
    let files = files(&program(false)?);
    if args.has_systemd() {
        for unit in [
            "divvy-agent.service",
            "divvy-helper.service",
            "divvy-helper.socket",
        ] {
            let folders = ["/etc/systemd/system", "/usr/lib/systemd/system"];
            if folders
                .iter()
                .any(|folder| args.place(&format!("{folder}/{unit}")).exists())
            {
                args.step(&format!("stop and disable {unit}"), || {
                    systemctl(&["disable", "--now", unit])
                })?;
            }
        }
    }
    remove_limits(args)?;
    for file in files.iter().rev() {
        remove_file(args, file)?;
    }
    if args.has_systemd() {
        args.step("have systemd read its units again", || {
            systemctl(&["daemon-reload"])
        })?;
    }
    if args.root.is_some() {
        return Ok(0);
    }
    if let Some(user) = User::from_name(USER).ok().flatten() {
        match processes_of(user.uid.as_raw()) {
            0 => args.step(&format!("remove the user `{USER}`"), || {
                run("userdel", &[USER], "the user cannot be removed")
            })?,
            count => output::print(&format!(
                "kept: the user `{USER}`, which has {count} processes: they keep slices that live; `userdel {USER}` when they have ended"
            ))?,
        }
    }
    Ok(0)
}

/// Lets the helper make control groups where the settings limit workers' memory, and not elsewhere; whether that is another
/// thing than before.
fn install_limits(args: &Args) -> Result<bool, Fault> {
    let file = worker_memory();
    let place = args.place(file.path);
    let settings = fs::read_to_string(args.place("/etc/divvy/config.toml")).unwrap_or_default();
    match (limits_workers(&settings), there(&place, &file)?) {
        (true, There::Nothing) => {
            install_file(args, &file)?;
            Ok(true)
        }
        (true, _) => install_file(args, &file).map(|()| false),
        (false, There::Same) => {
            remove_limits(args)?;
            Ok(true)
        }
        (false, _) => Ok(false),
    }
}

/// Takes that away again, and its folder where nothing else is in it.
fn remove_limits(args: &Args) -> Result<(), Fault> {
    let file = worker_memory();
    remove_file(args, &file)?;
    if let Some(folder) = args.place(file.path).parent().filter(|_| !args.dry_run) {
        let _others = fs::remove_dir(folder);
    }
    Ok(())
}

/// What stands where a file is to be.
enum There {
    Nothing,
    /// What we would write.
    Same,
    Other,
}

fn there(place: &Path, file: &Installed) -> Result<There, Fault> {
    match fs::read_to_string(place) {
        Ok(text) if text == file.text => Ok(There::Same),
        Ok(_) => Ok(There::Other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(There::Nothing),
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(There::Other),
        Err(error) => Err(cannot("read", place).because(&error)),
    }
}

/// Where a distribution's package has put this file, if it has: the package then owns it.
fn packaged(args: &Args, file: &Installed) -> Result<Option<PathBuf>, Fault> {
    const PACKAGED: &str = "/usr/lib/systemd/system";
    if file.is_settings || *file == worker_memory() {
        return Ok(None);
    }
    let unit = Path::new(file.path);
    let place = match unit.parent() {
        Some(folder) if folder.ends_with("systemd/system") => args.place(&format!(
            "{PACKAGED}/{}",
            unit.file_name().unwrap_or_default().to_string_lossy()
        )),
        _ if args.place(&format!("{PACKAGED}/{}", UNITS[0])).exists() => args.place(file.path),
        _ => return Ok(None),
    };
    Ok(matches!(there(&place, file)?, There::Same).then_some(place))
}

fn install_file(args: &Args, file: &Installed) -> Result<(), Fault> {
    if let Some(place) = packaged(args, file)? {
        return output::print(&format!("is there: {}, a package's", place.display()));
    }
    let place = args.place(file.path);
    let shown = place.display();
    match there(&place, file)? {
        There::Same => output::print(&format!("is there: {shown}")),
        There::Other if file.is_settings => output::print(&format!(
            "kept: {shown}, which is yours; it is to say `run_dir = \"/run/divvy\"`"
        )),
        There::Other if !args.force => {
            output::print(&format!("kept: {shown}, which was edited; --force replaces it"))
        }
        There::Other | There::Nothing => args.step(&format!("write {shown}"), || write(&place, &file.text)),
    }
}

fn remove_file(args: &Args, file: &Installed) -> Result<(), Fault> {
    let place = args.place(file.path);
    let shown = place.display();
    if packaged(args, file)?.is_some_and(|packaged| packaged == place) {
        return output::print(&format!("kept: {shown}, a package's"));
    }
    match there(&place, file)? {
        There::Nothing => Ok(()),
        There::Other if file.is_settings => output::print(&format!("kept: {shown}, which is yours")),
        There::Other if !args.force => output::print(&format!(
            "kept: {shown}, which was edited or is of another version; --force removes it"
        )),
        There::Other | There::Same => args.step(&format!("remove {shown}"), || {
            fs::remove_file(&place).map_err(|error| cannot("remove", &place).because(&error))
        }),
    }
}

/// In a private place first, then renamed: systemd never reads half a unit.
fn write(place: &Path, text: &str) -> Result<(), Fault> {
    let written = || -> std::io::Result<()> {
        let folder = place.parent().unwrap_or(place);
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let aside = folder.join(format!(".{name}.{}.new", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&aside)?;
        let whole = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        whole.and_then(|()| fs::rename(&aside, place)).inspect_err(|_| {
            let _half = fs::remove_file(&aside);
        })
    };
    written().map_err(|error| cannot("write", place).because(&error))
}

fn cannot(verb: &str, place: &Path) -> Fault {
    Fault::new(Code::Config, format!("cannot {verb} `{}`", place.display()))
}

fn make_user() -> Result<(), Fault> {
    let words = [
        "--system",
        "--user-group",
        "--home-dir",
        "/nonexistent",
        "--no-create-home",
        "--shell",
        "/usr/sbin/nologin",
        USER,
    ];
    run("useradd", &words, "the user cannot be made")
}

fn systemctl(words: &[&str]) -> Result<(), Fault> {
    run("systemctl", words, "systemd did not do it")
}

fn run(program: &str, words: &[&str], what: &str) -> Result<(), Fault> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Fault::new(Code::Tool, format!("`{program}` cannot be run")).because(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Fault::new(Code::Tool, what).cause(format!(
        "`{program} {}` ended with {}: {}",
        words.join(" "),
        output.status,
        divvy_host::tool::first_words(&said)
    )))
}

/// How many processes run as a user.
fn processes_of(uid: u32) -> usize {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| divvy_privileged::effective_user(*pid).is_ok_and(|owner| owner == uid))
        .count()
}
