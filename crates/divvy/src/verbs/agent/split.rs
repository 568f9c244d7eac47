//! One process or two: what root's agent becomes when it is to serve other users.

use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use divvy_model::{Code, Fault};
use divvy_privileged::user::{become_user, find};
use divvy_privileged::{Remote, inherited, pair};
use nix::unistd::User;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstat, open, openat, statat,
};
use rustix::io::Errno;

use crate::config::{Config, HOSTS_FILE};
use crate::context::serve_command;

/// The agent's user by default.
pub const USER: &str = "divvy";
/// Says that standard input and output lead to the helper.
const CHANNELS: &str = "DIVVY_AGENT_CHANNELS";

/// Whether every user can read this file.
pub fn everyone_reads(path: &Path) -> bool {
    let has = |path: &Path, bits: u32| {
        std::fs::symlink_metadata(path).is_ok_and(|file| file.mode() & bits == bits && !file.is_symlink())
    };
    has(path, 0o004) && path.ancestors().skip(1).all(|folder| has(folder, 0o001))
}

/// What an agent is.
pub enum Role {
    /// All in one process.
    Single,
    /// Root's, which is to become a helper and an agent of this user.
    Split(User),
    /// An agent with a helper.
    Helped(Remote),
}

/// What this agent is to be.
///
/// # Errors
/// [`Code::Config`] where root would serve others as root.
pub fn role(config: &Config) -> Result<Role, Fault> {
    let cannot = |error: &std::io::Error| {
        Fault::new(Code::AgentStart, "this agent's helper cannot be reached").because(error)
    };
    if std::env::var_os(CHANNELS).is_some() {
        let channels = inherited().map_err(|error| cannot(&error))?;
        return Ok(Role::Helped(Remote::over(channels)));
    }
    let named = config.text("agent_user");
    let own = rustix::process::geteuid();
    if !own.is_root() {
        let socket = config.text("helper_socket").map(Path::new);
        let is_agents_user = find(named.unwrap_or(USER)).is_ok_and(|user| user.uid.as_raw() == own.as_raw());
        return Ok(match socket.filter(|_| is_agents_user) {
            Some(socket) => Role::Helped(Remote::at(socket)),
            None => Role::Single,
        });
    }
    let others: bool = config.get("admit_others")?.unwrap_or(false);
    match named {
        Some(name) => find(name).map(Role::Split),
        None if !others => Ok(Role::Single),
        None => find(USER).map(Role::Split).map_err(|_| {
            Fault::new(
                Code::Config,
                "an agent that admits other users does not run as root, and there is no user `divvy`",
            )
            .hint("`divvy agent install` makes the user and the units; `agent_user` names another user")
        }),
    }
}

/// Starts the helper, and becomes the agent of the user.
///
/// # Errors
/// [`Code::RunDir`], [`Code::AgentStart`], [`Code::Privilege`].
pub fn into_two(run: &Path, config: &Config, user: &User) -> Result<u8, Fault> {
    let cannot = |what: &str, error: &std::io::Error| {
        Fault::new(Code::AgentStart, format!("cannot start {what}")).because(error)
    };
    let run = divvy_agent::RunDir::peek(run).path().to_owned();
    hand_over(&run, user)?;
    let [(quick, its_quick), (slow, its_slow)] = match (pair(), pair()) {
        (Ok(one), Ok(other)) => [one, other],
        (Err(error), _) | (_, Err(error)) => return Err(cannot("the helper", &error)),
    };
    let mut helper = Command::new("/proc/self/exe");
    helper
        .arg0("divvy")
        .args(["agent", "helper", "--uid", &user.uid.to_string()])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("DIVVY_RUN_DIR", &run)
        .envs(std::env::var_os("DIVVY_AGENT_LOG").map(|log| ("DIVVY_AGENT_LOG", log)))
        .current_dir("/")
        .process_group(0)
        .stdin(its_quick)
        .stdout(its_slow);
    // It ends when the agent does, and its new parent reaps it.
    let _helper = helper.spawn().map_err(|error| cannot("the helper", &error))?;
    let run_dir = divvy_agent::RunDir::peek(&run);
    let mut agent = serve_command(&run_dir);
    let mut again = Command::new("/proc/self/exe");
    again.arg0("divvy").args(agent.get_args());
    for (name, value) in agent.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    agent = again;
    // Root's settings hold for the agent, whose own files are others.
    for value in config.values() {
        // It reads the host's file by itself, so that it can read it again.
        if value.origin == HOSTS_FILE && everyone_reads(Path::new(HOSTS_FILE)) {
            continue;
        }
        if value.origin != "default" && !value.value.is_empty() && value.key != "run_dir" {
            agent.env(format!("DIVVY_{}", value.key.to_ascii_uppercase()), value.value);
        }
    }
    agent
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_RUNTIME_DIR")
        .env("HOME", "/nonexistent")
        .env("USER", &user.name)
        .env(CHANNELS, "inherited")
        .current_dir("/")
        .stdin(quick)
        .stdout(slow);
    become_user(user)?;
    Err(cannot("the agent", &agent.exec()))
}

/// Makes the run directory the agent's user's. One that is root's is handed over with all in it, unless slices live
/// there. Processes of root's serve those, and no other user may serve their sockets.
fn hand_over(run: &Path, user: &User) -> Result<(), Fault> {
    let fault = |what: &str| {
        Fault::new(
            Code::RunDir,
            format!("{what} the run directory `{}`", run.display()),
        )
        .hint("choose another with DIVVY_RUN_DIR, or remove it")
    };
    let failed = |error: Errno| fault("cannot hand over").because(&std::io::Error::from(error));
    if let Some(parent) = run.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .map_err(|error| fault("cannot make").because(&error))?;
    }
    if let Some(writable) = run.ancestors().skip(1).find(|above| !is_roots(above)) {
        return Err(fault(&format!(
            "another user can write in `{}`, which is above",
            writable.display()
        )));
    }
    match DirBuilder::new().mode(0o711).create(run) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(fault("cannot make").because(&error));
        }
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(run, flags, Mode::empty()).map_err(failed)?;
    let seen = fstat(&folder).map_err(failed)?;
    if seen.st_uid == user.uid.as_raw() {
        return Ok(());
    }
    if seen.st_uid != 0 || seen.st_mode & 0o022 != 0 {
        return Err(fault("another user can write"));
    }
    if has_entries(&folder, "slices").map_err(failed)? {
        return Err(Fault::new(
            Code::RunDir,
            format!("in `{}` live slices of an agent that ran as root", run.display()),
        )
        .hint("they keep their limits; end them (`divvy ps`, `divvy kill`), or choose another directory with DIVVY_RUN_DIR"));
    }
    give(&folder, user, 0).map_err(failed)?;
    fchmod(&folder, Mode::from_raw_mode(0o711)).map_err(failed)
}

/// Whether only root can replace what root made there.
fn is_roots(folder: &Path) -> bool {
    const STICKY: u32 = 0o1000;
    std::fs::metadata(folder).is_ok_and(|seen| {
        let mode = seen.permissions().mode();
        seen.uid() == 0 && (mode & 0o022 == 0 || mode & STICKY != 0)
    })
}

fn has_entries(folder: &OwnedFd, name: &str) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match openat(folder, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(false),
        folder => folder?,
    };
    let mut names = Dir::read_from(&folder)?.filter_map(Result::ok);
    Ok(names.any(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")))
}

/// Gives a folder that only root could write to the user, what is in it first.
fn give(folder: &OwnedFd, user: &User, depth: usize) -> Result<(), Errno> {
    const DEEPEST: usize = 12;
    let (uid, gid) = (Uid::from_raw(user.uid.as_raw()), Gid::from_raw(user.gid.as_raw()));
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let seen = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // A file that is another user's already is not touched.
        if seen.st_uid != 0 {
            continue;
        }
        if FileType::from_raw_mode(seen.st_mode) == FileType::Directory && depth < DEEPEST {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            give(&openat(folder, name, flags, Mode::empty())?, user, depth + 1)?;
        } else {
            chownat(
                folder.as_fd(),
                name,
                Some(uid),
                Some(gid),
                AtFlags::SYMLINK_NOFOLLOW,
            )?;
        }
    }
    fchown(folder, Some(uid), Some(gid))
}
