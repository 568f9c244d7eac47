//! Users of a scenario's own: real ones, made with useradd, without a login and without a password, and removed after.
//!
//! Their names carry the process that made them. What a killed scenario left behind goes when the next one begins.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};

use crate::clients::{on_path, require};
use crate::host::{finish, succeeded};
use crate::processes;

/// What every name begins with.
const PREFIX: &str = "dvt-";

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
    /// A folder of its own.
    pub home: PathBuf,
}

impl User {
    /// Whether this machine still has the user.
    pub fn exists(&self) -> bool {
        let said = finish(Command::new("id").args(["-u", &self.name]));
        String::from_utf8_lossy(&said.stdout).trim() == self.uid.to_string()
    }
}

/// The users of one scenario. Dropping them removes them.
#[derive(Debug)]
pub struct Users {
    /// A tenant.
    pub alice: User,
    /// Another tenant.
    pub bob: User,
    /// A user of the machine who is nothing to Divvy.
    pub mallory: User,
    /// The user that the system agent runs as.
    pub agent: User,
}

impl Users {
    /// Makes them, with homes below `folder`; nothing where this process is not root and need not be.
    pub fn new(folder: &Path) -> Option<Self> {
        let is_root = rustix::process::getuid().is_root();
        if !require(is_root, "root, who can make users") {
            return None;
        }
        on_path("useradd", "useradd (passwd)")?;
        static STORIES: AtomicU32 = AtomicU32::new(0);
        let tail = format!(
            "{}-{}",
            std::process::id(),
            STORIES.fetch_add(1, Ordering::Relaxed)
        );
        let _alone = lock();
        remove(|maker| !processes::is_alive(maker));
        let [alice, bob, mallory, agent] = ["alice", "bob", "mallory", "agent"]
            .map(|who| make(&format!("{PREFIX}{who}-{tail}"), folder, who));
        Some(Self {
            alice,
            bob,
            mallory,
            agent,
        })
    }

    /// Removes one of them from the machine, whatever it still runs.
    pub fn remove(&self, user: &User) {
        let _alone = lock();
        delete(&user.name);
        let gone = entries()
            .iter()
            .all(|line| line.split(':').next() != Some(&user.name));
        assert!(gone, "{} is still there", user.name);
    }

    /// Gives a user of them 16 subordinate numbers, as /etc/subuid has them; the first. They go with the user.
    pub fn give_subordinates(&self, user: &User) -> u32 {
        const FIRST: u32 = 3_100_000;
        let _alone = lock();
        // usermod(8) gives none where the file is not there.
        File::options()
            .create(true)
            .append(true)
            .open("/etc/subuid")
            .expect("the subordinate numbers");
        let text = fs::read_to_string("/etc/subuid").expect("the subordinate numbers");
        let ends = text.lines().filter_map(|line| {
            let mut numbers = line.split(':').skip(1).map(|field| field.parse::<u32>().ok());
            Some(numbers.next()?? + numbers.next()??)
        });
        let first = ends.max().unwrap_or(0).max(FIRST);
        change(user, "--add-subuids", first);
        first
    }

    /// Takes the numbers from `first` on from a user.
    pub fn take_subordinates(&self, user: &User, first: u32) {
        let _alone = lock();
        change(user, "--del-subuids", first);
    }

    /// All of them.
    fn all(&self) -> [&User; 4] {
        [&self.alice, &self.bob, &self.mallory, &self.agent]
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let _alone = lock();
        for user in self.all() {
            delete(&user.name);
        }
    }
}

/// The system's files of users have one writer at a time, and who comes second is refused, not kept waiting.
fn lock() -> File {
    let file = File::create("/run/divvy-tests.lock").expect("a lock");
    flock(&file, FlockOperation::LockExclusive).expect("locked");
    file
}

/// The number of subordinate users that a user is given.
const SUBORDINATES: u32 = 16;

fn change(user: &User, how: &str, first: u32) {
    let range = format!("{first}-{}", first + SUBORDINATES - 1);
    succeeded(&finish(Command::new("usermod").args([how, &range, &user.name])));
}

fn make(name: &str, folder: &Path, who: &str) -> User {
    let home = folder.join("home").join(who);
    let mut add = Command::new("useradd");
    add.args(["--system", "--no-create-home", "--no-log-init", "--user-group"])
        .args(["--shell", "/usr/sbin/nologin", "--home-dir"])
        .arg(&home)
        .arg(name);
    succeeded(&finish(&mut add));
    let line = entries()
        .into_iter()
        .find(|line| line.split(':').next() == Some(name))
        .expect("the user is there");
    let number = |place: usize| {
        line.split(':')
            .nth(place)
            .and_then(|text| text.parse().ok())
            .expect("a number")
    };
    let user = User {
        name: name.into(),
        uid: number(2),
        gid: number(3),
        home,
    };
    fs::create_dir_all(&user.home).expect("a folder");
    std::os::unix::fs::chown(&user.home, Some(user.uid), Some(user.gid)).expect("given away");
    user
}

/// Removes the users of scenarios whose process `is_to_go`.
fn remove(is_to_go: impl Fn(u32) -> bool) {
    for line in entries() {
        let name = line.split(':').next().unwrap_or_default();
        let maker = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').nth(1)?.parse().ok());
        if maker.is_some_and(&is_to_go) {
            delete(name);
        }
    }
}

fn delete(name: &str) {
    // Its group of the same name goes with it. A user that is gone already is no error.
    let _gone = Command::new("userdel").arg("--force").arg(name).output();
}

/// The lines of /etc/passwd.
fn entries() -> Vec<String> {
    let text = fs::read_to_string("/etc/passwd").expect("the users");
    text.lines().map(str::to_owned).collect()
}
