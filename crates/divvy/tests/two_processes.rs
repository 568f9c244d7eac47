//! The agent of several users and its helper: who is what, what works between them, and what goes on without the helper.
//! Only root can try it, with users that are made for it and removed after.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Host, divvy, until};

/// A user of this machine, for one test.
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

impl Account {
    fn new(tag: &str) -> Self {
        let name = format!("dvt-e-{tag}-{}", std::process::id());
        let made = Command::new("useradd")
            .args(["--system", "--user-group", "--no-create-home", &name])
            .status();
        assert!(made.expect("useradd runs").success());
        let number = |word: &str| {
            let output = Command::new("id").args([word, &name]).output().expect("id runs");
            let text = String::from_utf8(output.stdout).expect("text");
            text.trim().parse().expect("a number")
        };
        let (uid, gid) = (number("-u"), number("-g"));
        Self { name, uid, gid }
    }

    fn run(&self, command: &mut Command) -> std::process::Output {
        command.uid(self.uid).gid(self.gid).output().expect("it starts")
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _gone = Command::new("userdel").args(["--force", &self.name]).output();
    }
}

/// An agent of two processes, in a directory above which only root writes: there other users trust it.
struct Served {
    agent: Child,
    host: Host,
    user: Account,
    base: PathBuf,
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Served {
    fn new(tag: &str) -> Self {
        let (host, user) = (Host::new(), Account::new(tag));
        std::fs::set_permissions(host.folder(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let base = PathBuf::from(format!("/run/dvt-e-{tag}-{}", std::process::id()));
        std::fs::create_dir(&base).expect("a folder");
        std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let log = std::fs::File::create(host.folder().join("log")).expect("a log");
        let agent = host
            .divvy(&["agent", "serve"])
            .env("DIVVY_RUN_DIR", base.join("run"))
            .env("DIVVY_AGENT_USER", &user.name)
            .env("DIVVY_ADMIT_OTHERS", "true")
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .expect("divvy starts");
        let served = Self {
            agent,
            host,
            user,
            base,
        };
        until("it listens", || {
            std::os::unix::net::UnixStream::connect(served.run_dir().join("agent.sock")).is_ok()
        });
        served
    }

    fn run_dir(&self) -> PathBuf {
        self.base.join("run")
    }

    fn divvy(&self, words: &[&str]) -> Command {
        let mut command = self.host.divvy(words);
        command.env("DIVVY_RUN_DIR", self.run_dir());
        command
    }

    fn text(&self, words: &[&str]) -> String {
        let output = self.divvy(words).output().expect("divvy starts");
        assert!(output.status.success(), "{words:?}: {output:?}: {}", self.log());
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, words: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.text(&[&["-o", "json"], words].concat())).expect("JSON")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.host.folder().join("log")).expect("a log")
    }

    /// The agent's only child that is the helper.
    fn helper(&self) -> u32 {
        let pids = std::fs::read_dir("/proc").expect("processes").flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_helper = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            parent(*pid) == Some(self.agent.id()) && line.contains("agent helper")
        };
        pids.find(is_helper)
            .unwrap_or_else(|| panic!("no helper: {}", self.log()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _stopped = self.divvy(&["agent", "stop"]).output();
        let _ended = self.agent.kill();
        let _reaped = self.agent.wait();
        let _removed = std::fs::remove_dir_all(&self.base);
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn status_line(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_default().trim().replace('\t', " ")
}

#[test]
fn the_agent_is_no_root_and_the_helper_is_and_both_are_confined() {
    if !is_root() {
        return;
    }
    let served = Served::new("two");
    let (agent, helper, uid) = (served.agent.id(), served.helper(), served.user.uid);
    assert_eq!(status_line(agent, "Uid"), format!("{uid} {uid} {uid} {uid}"));
    for capabilities in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert_eq!(
            status_line(agent, capabilities),
            "0000000000000000",
            "{capabilities}"
        );
    }
    assert_eq!(status_line(helper, "Uid"), "0 0 0 0");
    for pid in [agent, helper] {
        assert_eq!(status_line(pid, "NoNewPrivs"), "1");
        assert_eq!(status_line(pid, "Seccomp"), "2", "a filter");
    }
    // All that lies in the run directory is the agent's user's.
    let mut folders = vec![served.run_dir()];
    let mode = std::fs::metadata(&folders[0]).expect("there").mode() & 0o777;
    assert_eq!(mode, 0o711);
    while let Some(folder) = folders.pop() {
        assert_eq!(
            std::fs::symlink_metadata(&folder).expect("there").uid(),
            uid,
            "{folder:?}"
        );
        for entry in std::fs::read_dir(folder).expect("readable").flatten() {
            let meta = entry.path().symlink_metadata().expect("there");
            assert_eq!(meta.uid(), uid, "{:?}", entry.path());
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    let status = served.json(&["agent", "status"]);
    assert_eq!(status["uid"], uid);
    assert_eq!(status["helper"], "answers");
    // Others look, and see the devices.
    let other = Account::new("sees");
    for words in [&["ps"][..], &["agent", "status"], &["devices"]] {
        let seen = other.run(&mut served.divvy(words));
        assert!(seen.status.success(), "{words:?}: {seen:?}");
    }
    // It goes with the agent.
    served.text(&["agent", "stop"]);
    until("the helper has ended", || {
        !Path::new(&format!("/proc/{helper}")).exists() || status_line(helper, "State").starts_with('Z')
    });
}

#[test]
fn without_the_helper_the_agent_goes_on_and_says_so() {
    if !is_root() {
        return;
    }
    let served = Served::new("dead");
    let helper = i32::try_from(served.helper()).expect("a number");
    let helper = rustix::process::Pid::from_raw(helper).expect("a process");
    rustix::process::kill_process(helper, rustix::process::Signal::KILL).expect("killed");
    until("it is missed", || {
        served.json(&["agent", "status"])["helper"] == "silent"
    });
    let text = served.text(&["agent", "status"]);
    assert!(text.contains("helper       does not answer"), "{text}");
    served.text(&["ps"]);
    let other = Account::new("lists");
    assert!(other.run(&mut served.divvy(&["ps"])).status.success());
}

#[test]
fn root_serves_others_as_another_user_or_not_at_all() {
    if !is_root() {
        return;
    }
    let host = Host::new();
    let refused = |user: Option<&str>| {
        let mut command = host.divvy(&["agent", "serve"]);
        command.env("DIVVY_ADMIT_OTHERS", "true");
        if let Some(user) = user {
            command.env("DIVVY_AGENT_USER", user);
        }
        let output = command.output().expect("divvy starts");
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    // Where the machine has the user `divvy` it would serve as that one.
    if nix::unistd::User::from_name("divvy").expect("told").is_none() {
        let said = refused(None);
        assert!(
            said.contains("error[D0003]") && said.contains("does not run as root"),
            "{said}"
        );
        assert!(said.contains("`divvy agent install`"), "{said}");
    }
    for user in ["root", "0", "dvt-e-absent"] {
        let said = refused(Some(user));
        assert!(said.contains("error[D0003]"), "{user}: {said}");
    }
    // A directory with slices that processes of root's keep is left as it is.
    let user = Account::new("old");
    let slice = host.run_dir().join("slices/0123abcd");
    std::fs::create_dir_all(&slice).expect("a slice");
    let said = refused(Some(&user.name));
    assert!(
        said.contains("live slices of an agent that ran as root"),
        "{said}"
    );
    assert_eq!(std::fs::metadata(&slice).expect("there").uid(), 0);
    // Another user's is not taken.
    std::fs::remove_dir(&slice).expect("removed");
    std::os::unix::fs::chown(host.run_dir(), Some(54_321), None).expect("root may");
    let said = refused(Some(&user.name));
    assert!(
        said.contains("error[D0030]") || said.contains("another user can write"),
        "{said}"
    );
}

#[test]
fn a_directory_that_root_served_alone_is_handed_over_with_what_is_in_it() {
    if !is_root() {
        return;
    }
    let host = Host::new();
    std::fs::create_dir_all(host.run_dir().join("slices")).expect("folders");
    std::fs::create_dir_all(host.run_dir().join("stages/x/lib")).expect("folders");
    std::fs::write(host.run_dir().join("agent.log"), "old\n").expect("written");
    let precious = host.folder().join("precious");
    std::fs::write(&precious, "kept").expect("written");
    std::os::unix::fs::symlink(&precious, host.run_dir().join("stages/x/link")).expect("a link");
    std::fs::set_permissions(host.folder(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let user = Account::new("over");
    let mut agent = host
        .divvy(&["agent", "serve"])
        .env("DIVVY_AGENT_USER", &user.name)
        .stderr(Stdio::null())
        .spawn()
        .expect("divvy starts");
    until("it listens", || {
        std::os::unix::net::UnixStream::connect(host.run_dir().join("agent.sock")).is_ok()
    });
    for place in ["", "agent.log", "stages/x/lib", "slices"] {
        let meta = std::fs::metadata(host.run_dir().join(place)).expect("there");
        assert_eq!(meta.uid(), user.uid, "{place}");
    }
    assert_eq!(
        std::fs::metadata(&precious).expect("there").uid(),
        0,
        "no link is followed"
    );
    // Below /tmp no command speaks to another user's agent, not even root's.
    agent.kill().expect("ours");
    agent.wait().expect("ended");
}

#[test]
fn the_helper_is_roots_and_serves_a_channel() {
    let host = Host::new();
    if is_root() {
        let output = host
            .divvy(&["agent", "helper", "--uid", "54321"])
            .output()
            .expect("divvy starts");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(
            !output.status.success() && said.contains("the helper cannot serve"),
            "{said}"
        );
        let mut as_other = Command::new(divvy());
        as_other
            .args(["agent", "helper"])
            .uid(54_321)
            .gid(54_321)
            .env_clear();
        let output = as_other.output();
        // Where the build lies in a folder that others do not enter it cannot be started.
        if let Ok(output) = output {
            let said = String::from_utf8(output.stderr).expect("text");
            assert!(said.contains("this is not root"), "{said}");
        }
    }
}

/// A program of another user's in a slice, until it is dropped.
struct Program(Child);

impl Program {
    fn new(served: &Served, of: &Account) -> Self {
        let words = [
            "run", "--name", "theirs", "--memory", "1GiB", "--", "sleep", "600",
        ];
        let mut command = served.divvy(&words);
        command
            .uid(of.uid)
            .gid(of.gid)
            .process_group(0)
            .stdout(Stdio::null());
        let program = Self(command.spawn().expect("divvy starts"));
        until("the slice is there", || {
            served.json(&["ps"])["items"].as_array().is_some_and(|items| {
                items.iter().any(|slice| {
                    slice["name"] == "theirs" && slice["uid"] == of.uid && slice["state"] == "running"
                })
            })
        });
        program
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The programs that it runs are in its group.
        let group = i32::try_from(self.0.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let _ended =
            group.map(|group| rustix::process::kill_process_group(group, rustix::process::Signal::KILL));
        let _reaped = self.0.wait();
    }
}

#[test]
fn another_users_program_runs_in_a_slice_and_is_ended_by_way_of_the_helper() {
    if !is_root() {
        return;
    }
    let served = Served::new("ends");
    let other = Account::new("runs");
    let mut command = served.divvy(&[
        "run", "--name", "theirs", "--memory", "1GiB", "--", "sleep", "600",
    ]);
    command.uid(other.uid).gid(other.gid);
    let run = Program(command.stdout(Stdio::null()).spawn().expect("divvy starts"));
    until("the slice is there", || {
        served.json(&["ps"])["items"].as_array().is_some_and(|items| {
            items.iter().any(|slice| {
                slice["name"] == "theirs" && slice["uid"] == other.uid && slice["state"] == "running"
            })
        })
    });
    let mut run = run;
    let ended = other.run(&mut served.divvy(&["kill", "theirs", "--yes"]));
    assert!(ended.status.success(), "{ended:?}: {}", served.log());
    until("it has ended", || run.0.try_wait().expect("a status").is_some());
    until("its slice has gone", || {
        served.json(&["ps"])["items"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
}

#[test]
fn another_user_makes_and_deletes_a_lasting_slice() {
    if !is_root() {
        return;
    }
    let served = Served::new("lasts");
    let other = Account::new("makes");
    let made = other.run(&mut served.divvy(&["slice", "create", "theirs", "--memory", "1GiB"]));
    assert!(made.status.success(), "{made:?}: {}", served.log());
    let slices = served.json(&["ps"]);
    assert_eq!(slices["items"][0]["uid"], other.uid, "{slices}");
    // Its user is deleted while it lives: it stays under the number, and root deletes it.
    let uid = other.uid;
    drop(other);
    let slices = served.json(&["ps"]);
    assert_eq!(slices["items"][0]["uid"], uid, "{slices}");
    served.text(&["slice", "delete", "theirs", "--yes"]);
    assert_eq!(served.json(&["ps"])["items"], serde_json::json!([]));
}

#[test]
fn without_the_helper_another_users_program_is_not_ended_and_goes_on() {
    if !is_root() {
        return;
    }
    let served = Served::new("left");
    let other = Account::new("goes");
    let mut run = Program::new(&served, &other);
    let helper = i32::try_from(served.helper()).expect("a number");
    let helper = rustix::process::Pid::from_raw(helper).expect("a process");
    rustix::process::kill_process(helper, rustix::process::Signal::KILL).expect("killed");
    until("it is missed", || {
        served.json(&["agent", "status"])["helper"] == "silent"
    });
    let _not_ended = other.run(&mut served.divvy(&["kill", "theirs", "--yes"]));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(run.0.try_wait().expect("a status").is_none(), "it goes on");
    assert_eq!(
        served.json(&["ps"])["items"][0]["state"],
        "running",
        "with its slice"
    );
}
