//! A machine as docs/one-card-thirty-students.md sets it up: an agent that root started and that serves everybody, and
//! users who are not root.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::build::binaries;
use crate::host::{Host, finish, succeeded};
use crate::isolation;
use crate::processes;
use crate::users::{User, Users};
use crate::wait::until;
use crate::walker::writable_by_others;

/// See the module. Dropping it ends everything that runs under it and removes its files and its users.
pub struct System {
    /// As root sees it.
    host: Host,
    /// Its users.
    pub users: Users,
    folder: PathBuf,
    settings: Vec<(String, String)>,
    agent: Mutex<Option<Child>>,
}

impl Deref for System {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl System {
    /// A machine with one emulated H100, whose agent admits everybody; nothing where this process is not root and need
    /// not be.
    pub fn new() -> Option<Self> {
        Self::with(&[])
    }

    /// The same, with these variables for the agent as well.
    pub fn with(settings: &[(&str, &str)]) -> Option<Self> {
        let system = Self::unused(settings)?;
        // The run directory's owner puts the libraries that programs load into it with his first run.
        let _staged = finish(&mut system.host.divvy(["run", "--memory", "64MiB", "--", "true"]));
        Some(system)
    }

    /// The same, on which nothing has run yet.
    pub fn unused(settings: &[(&str, &str)]) -> Option<Self> {
        static STORIES: AtomicU32 = AtomicU32::new(0);
        let number = STORIES.fetch_add(1, Ordering::Relaxed);
        // Every folder above is root's, and others may enter it.
        let folder = PathBuf::from(format!("/run/dvt-{}-{number}", std::process::id()));
        if rustix::process::getuid().is_root() {
            let _former = fs::remove_dir_all(&folder);
            fs::DirBuilder::new()
                .mode(0o755)
                .create(&folder)
                .expect("a folder that others may enter");
        }
        let users = Users::new(&folder)?;
        let system = Self {
            host: Host::in_folder(&folder),
            users,
            folder,
            settings: [("DIVVY_EMULATED", "h100"), ("DIVVY_ADMIT_OTHERS", "true")]
                .iter()
                .chain(settings)
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            agent: Mutex::new(None),
        };
        system.start_agent();
        Some(system)
    }

    /// Starts the agent as root does, and waits until it answers. The agent's log is [`System::log`].
    pub fn start_agent(&self) {
        self.start_agent_on(None);
    }

    /// The same, on a kernel before 5.6.
    pub fn start_agent_on_older_kernel(&self) {
        self.start_agent_on(Some(&self.program("older-kernel")));
    }

    fn start_agent_on(&self, kernel: Option<&Path>) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("a log");
        // What a login session and a unit without settings give: a descriptor limit of 1024, that may be raised.
        let mut command = self.host.command("sh");
        command
            .args(["-c", "ulimit -S -n 1024; exec \"$@\"", "sh"])
            .args(kernel)
            .arg(self.program("divvy"))
            .args(["agent", "serve"])
            .env("DIVVY_AGENT_USER", &self.users.agent.name)
            .env("DIVVY_SYSTEM_RUN_DIR", self.run_directory())
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .process_group(0);
        let mut agent = command.spawn().expect("the agent starts");
        until("the agent answers", || {
            if let Some(status) = agent.try_wait().expect("a child") {
                panic!("the agent ended, {status}: {}", self.log_text());
            }
            self.host
                .divvy(["agent", "status"])
                .output()
                .is_ok_and(|output| output.status.success())
                .then_some(())
        });
        *self.agent() = Some(agent);
    }

    /// Ends the agent as its unit would, and waits until it is gone.
    pub fn stop_agent(&self) {
        let Some(mut agent) = self.agent().take() else {
            return;
        };
        processes::signal(agent.id(), Signal::TERM);
        until("the agent is gone", || agent.try_wait().expect("a child"));
    }

    /// The agent's process: the one that was started, and so not a helper's.
    pub fn agent_pid(&self) -> u32 {
        self.agent().as_ref().expect("an agent was started").id()
    }

    /// The processes of the agent's tree that serve: itself and what it started to help it, no page servers.
    pub fn agent_tree(&self) -> Vec<u32> {
        let keeps = |pid: u32| {
            processes::arguments(pid)
                .get(1)
                .is_some_and(|word| word == "keep")
        };
        let mut tree = processes::tree(self.agent_pid());
        tree.retain(|&pid| !keeps(pid));
        tree
    }

    /// How the agent ended, if it did.
    pub fn agent_status(&self) -> Option<std::process::ExitStatus> {
        self.agent().as_mut()?.try_wait().expect("a child")
    }

    fn agent(&self) -> MutexGuard<'_, Option<Child>> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("agent.log")
    }

    /// What the agent has logged.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// A program of ours, where every user may run it.
    pub fn program(&self, name: &str) -> PathBuf {
        let built = binaries();
        if built.ancestors().all(is_open_to_all) {
            return built.join(name);
        }
        let own = self.folder.join("bin");
        if !own.exists() {
            fs::create_dir(&own).expect("a folder");
            for entry in fs::read_dir(built).expect("what was built").flatten() {
                let path = entry.path();
                let is_wanted = path.is_file()
                    && (path.extension().is_some_and(|kind| kind == "so")
                        || [
                            "divvy",
                            "divvy-worker",
                            "divvy-guest",
                            "probe",
                            "spinner",
                            "transfers",
                            "attacker",
                            "divvy-helper",
                            "older-kernel",
                        ]
                        .iter()
                        .any(|name| path.ends_with(name)));
                if is_wanted {
                    fs::copy(&path, own.join(entry.file_name())).expect("copied");
                }
            }
        }
        own.join(name)
    }

    /// A command that runs `program` as this user, as from a shell of its own.
    pub fn command_as(&self, user: &User, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &user.home)
            .env("USER", &user.name)
            .env("DIVVY_RUN_DIR", self.run_directory())
            .current_dir(&user.home)
            .stdin(Stdio::null())
            .uid(user.uid)
            .gid(user.gid);
        command
    }

    /// `divvy` with these arguments, as this user.
    pub fn divvy_as<'a>(&self, user: &User, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.command_as(user, self.program("divvy"));
        command.args(isolation::among(arguments));
        command
    }

    /// The attacker with these arguments, as this user.
    pub fn attacker_as<'a>(&self, user: &User, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.command_as(user, self.program("attacker"));
        command.args(arguments);
        command
    }

    /// A script of a shell, run by this user with `words` as its parameters.
    pub fn script_as(&self, user: &User, script: &str, words: &[&Path]) -> Output {
        let mut command = self.command_as(user, "/bin/sh");
        finish(command.args(["-c", script, "sh"]).args(words))
    }

    /// Has a user make a lasting slice; its id.
    pub fn slice_of(&self, user: &User, name: &str, memory: &str) -> String {
        succeeded(&finish(
            &mut self.divvy_as(user, ["slice", "create", name, "--memory", memory]),
        ));
        self.id_of(name)
    }

    /// The id of the slice of this name.
    pub fn id_of(&self, name: &str) -> String {
        let shown = self.json(["inspect", name]);
        shown["id"].as_str().expect("an id").to_owned()
    }

    /// The folder of a slice, in this layout and in that before.
    pub fn slice_folder(&self, id: &str) -> PathBuf {
        self.run_directory().join("slices").join(id)
    }

    /// The limit that a program of this user finds when it attaches to the slice, in bytes.
    pub fn limit_seen_by(&self, user: &User, id: &str) -> u64 {
        let socket = self.slice_folder(id).join("attach.sock");
        let mut look = self.attacker_as(user, ["limit"]);
        let said = succeeded(&finish(look.arg(socket)));
        said.trim().parse().expect("a number of bytes")
    }

    /// A file of root's alone, which no user may read or change.
    pub fn victim(&self, name: &str) -> Victim {
        let path = self.folder.join(name);
        fs::write(&path, SECRET).expect("written");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
        Victim(path)
    }

    /// What holds after every scenario: the agent lives and answers, and nothing below its run directory is another
    /// user's to change.
    pub fn holds(&self) {
        self.lives();
        assert!(
            self.answers_root(Duration::from_secs(20)),
            "the agent does not answer root: {}",
            self.log_text()
        );
        let found = self.walk();
        assert!(
            found.is_empty(),
            "users other than the agent's may change {}",
            found.join("; ")
        );
    }

    /// Panics where the agent has ended, or does within a moment.
    pub fn lives(&self) {
        for _ in 0..10 {
            if let Some(status) = self.agent_status() {
                panic!("the agent ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// What other users may change below the run directory, in words.
    pub fn walk(&self) -> Vec<String> {
        writable_by_others(&self.run_directory(), &[0, self.users.agent.uid])
    }

    /// Whether `divvy agent status` answers root within this time.
    pub fn answers_root(&self, limit: Duration) -> bool {
        ends_within(&mut self.host.divvy(["agent", "status"]), limit)
    }

    /// Whether `divvy ps` answers this user within this time.
    pub fn answers(&self, user: &User, limit: Duration) -> bool {
        ends_within(&mut self.divvy_as(user, ["ps"]), limit)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let mut ours = self
            .agent()
            .as_ref()
            .map_or(Vec::new(), |agent| processes::tree(agent.id()));
        // The number of a user that the scenario removed may be another scenario's user by now.
        let all = [
            &self.users.alice,
            &self.users.bob,
            &self.users.mallory,
            &self.users.agent,
        ];
        let users: Vec<u32> = all
            .iter()
            .filter(|user| user.exists())
            .map(|user| user.uid)
            .collect();
        // A process may be starting another while we look: look until there is none.
        for _ in 0..100 {
            ours.extend(processes::with_environment(
                "DIVVY_RUN_DIR",
                &self.run_directory(),
            ));
            ours.extend(processes::of_users(&users));
            ours.retain(|&pid| processes::is_alive(pid));
            if ours.is_empty() {
                break;
            }
            for &pid in &ours {
                processes::signal(pid, Signal::KILL);
            }
            let _reaped = self.agent_status();
            std::thread::sleep(Duration::from_millis(20));
        }
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

/// What stands in a [`Victim`].
const SECRET: &str = "root's secret\n";

/// A file of root's, mode 0600.
pub struct Victim(PathBuf);

impl Victim {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What has happened to it; nothing where it is as it was made.
    pub fn harm(&self) -> Option<String> {
        let meta = match fs::symlink_metadata(&self.0) {
            Ok(meta) => meta,
            Err(error) => return Some(format!("it is gone: {error}")),
        };
        let mode = meta.mode() & 0o7777;
        if (meta.uid(), mode) != (0, 0o600) || !meta.is_file() {
            return Some(format!("it is user {}'s, mode {mode:04o}", meta.uid()));
        }
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        (text != SECRET).then(|| format!("it says {text:?}"))
    }

    /// Panics where it is not as it was made.
    pub fn is_unharmed(&self) {
        if let Some(harm) = self.harm() {
            panic!("root's {}: {harm}", self.0.display());
        }
    }
}

/// Whether the command succeeds within this time. It is ended where it does not.
pub fn ends_within(command: &mut Command, limit: Duration) -> bool {
    let begin = std::time::Instant::now();
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ended = child.kill();
    let _reaped = child.wait();
    false
}

/// Whether every user may enter this folder.
fn is_open_to_all(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|meta| meta.mode() & 0o001 != 0)
}
