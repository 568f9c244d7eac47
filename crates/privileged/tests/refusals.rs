//! What the helper does, and what it refuses although its agent asks. Some of it only root can try.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use divvy_privileged::answer::{Answer, Refusal};
use divvy_privileged::request::{CdiFolder, Device, MpsWord, Owner, Process, Request, View};
use divvy_privileged::{Rules, effective_user, mount_namespace, perform, start_ticks};
use rustix::process::Signal;

/// A user that no test's process is.
const OTHER: u32 = 54_321;

/// A process that waits until it is told to end. It ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new(uid: Option<u32>, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sleep");
        command.arg("60").env_clear().envs(environment.iter().copied());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        Self::started(&mut command)
    }

    fn started(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn().expect("sleep runs");
        // Until then it is a copy of this test.
        let name = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&name).expect("it lives").trim() != "sleep" {
            std::thread::yield_now();
        }
        Self(child)
    }

    fn as_owned_by(&self, owner: Owner) -> Process {
        of(self.0.id(), owner)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn of(pid: u32, owner: Owner) -> Process {
    Process {
        pid,
        start_ticks: start_ticks(pid).expect("it lives"),
        owner,
    }
}

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn is_root() -> bool {
    own_uid() == 0
}

/// The rules of a helper whose agent runs as this test's user.
fn rules(run: &Path) -> Rules {
    Rules::of_helper(own_uid(), run).expect("rules")
}

fn ask(request: Request, rules: &Rules) -> Answer {
    perform(&request, rules).0
}

fn term(process: Process) -> Request {
    Request::Signal {
        process,
        signal: Signal::TERM,
    }
}

#[test]
fn a_signal_reaches_the_process_that_was_meant_and_no_other() {
    let run = tempfile::tempdir().expect("a folder");
    let rules = rules(run.path());
    let shown = run.path().to_str().expect("text").to_owned();
    let mut sleeper = Sleeper::new(None, &[("DIVVY_RUN_DIR", &shown)]);
    let meant = sleeper.as_owned_by(Owner::User(own_uid()));
    let later = Process {
        start_ticks: meant.start_ticks + 1,
        ..meant
    };
    assert_eq!(
        ask(term(later), &rules),
        Answer::Gone,
        "its number in another's hands"
    );
    let others = sleeper.as_owned_by(Owner::User(OTHER));
    assert_eq!(ask(term(others), &rules), Answer::Refused(Refusal::Owner));
    let container = sleeper.as_owned_by(Owner::Container);
    assert_eq!(
        ask(term(container), &rules),
        Answer::Refused(Refusal::NoContainer),
        "a process of the host"
    );
    assert!(
        sleeper.0.try_wait().expect("a status").is_none(),
        "nothing was sent so far"
    );
    assert_eq!(ask(term(meant), &rules), Answer::Yes);
    sleeper.0.wait().expect("ended");
    assert_eq!(ask(term(meant), &rules), Answer::Gone);
}

#[test]
fn the_systems_processes_the_agents_and_the_helpers_own_are_left_alone() {
    let run = tempfile::tempdir().expect("a folder");
    let agent = Sleeper::new(None, &[]);
    let rules = rules(run.path()).for_agent(agent.0.id());
    let owner = |pid| Owner::User(effective_user(pid).expect("it lives"));
    for pid in [1, std::process::id(), agent.0.id()] {
        assert_eq!(
            ask(term(of(pid, owner(pid))), &rules),
            Answer::Refused(Refusal::Protected),
            "{pid}"
        );
    }
    // In a container of ours there are none of the kernel's own.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        assert_eq!(
            ask(term(of(2, owner(2))), &rules),
            Answer::Refused(Refusal::Protected)
        );
    }
}

#[test]
fn of_roots_processes_only_those_are_touched_that_root_put_into_a_slice() {
    if !is_root() {
        return;
    }
    let run = tempfile::tempdir().expect("a folder");
    let rules = rules(run.path());
    let shown = run.path().to_str().expect("text").to_owned();
    let socket = format!("{shown}/slices/0123abcd/attach.sock");
    let (elsewhere, beside) = ("/run/other".to_owned(), format!("{shown}-2/attach.sock"));
    for (environment, answer) in [
        (vec![], Answer::Refused(Refusal::Root)),
        (
            vec![("DIVVY_RUN_DIR", elsewhere.as_str())],
            Answer::Refused(Refusal::Root),
        ),
        (
            vec![("DIVVY_SLICE", beside.as_str())],
            Answer::Refused(Refusal::Root),
        ),
        (vec![("DIVVY_SLICE", socket.as_str())], Answer::Yes),
        (vec![("DIVVY_RUN_DIR", shown.as_str())], Answer::Yes),
    ] {
        let sleeper = Sleeper::new(None, &environment);
        let process = sleeper.as_owned_by(Owner::User(0));
        let look = Request::Open {
            process,
            view: View::Environment,
        };
        let looked = perform(&look, &rules);
        assert_eq!(looked.1.is_some(), answer == Answer::Yes, "{environment:?}");
        assert_eq!(ask(term(process), &rules), answer, "{environment:?}");
    }
    // Another user's says nothing by its environment: it is that user's anyway.
    let sleeper = Sleeper::new(Some(OTHER), &[]);
    let process = sleeper.as_owned_by(Owner::User(OTHER));
    assert_eq!(ask(term(process), &rules), Answer::Yes);
}

/// A process of a subordinate user, in a user namespace of `owner`'s: what `newuidmap` allows a user to have.
fn of_a_subordinate_user(owner: u32) -> [Sleeper; 2] {
    const SUBORDINATE: u32 = 3_000_000;
    let mut first = Command::new("unshare");
    first.args(["--user", "sleep", "60"]).uid(owner).gid(owner);
    let first = Sleeper::started(&mut first);
    for map in ["uid_map", "gid_map"] {
        let map = format!("/proc/{}/{map}", first.0.id());
        std::fs::write(map, format!("0 {SUBORDINATE} 1000")).expect("mapped");
    }
    let mut second = Command::new("nsenter");
    second.args(["--user", "--setuid", "0", "--setgid", "0", "--target"]);
    let second = Sleeper::started(second.arg(first.0.id().to_string()).args(["sleep", "60"]));
    assert_eq!(effective_user(second.0.id()).expect("it lives"), SUBORDINATE);
    [first, second]
}

#[test]
fn a_signal_reaches_what_the_user_itself_may_signal_and_nothing_else_of_other_users() {
    if !is_root() {
        return;
    }
    if !Command::new("unshare")
        .args(["--user", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("skipped: no namespace of users may be made here");
        return;
    }
    const ANOTHER: u32 = OTHER + 1;
    let run = tempfile::tempdir().expect("a folder");
    let rules = rules(run.path());
    let may = |process| ask(Request::MaySignal { process }, &rules);
    let refused = Answer::Refused(Refusal::Owner);

    let [_namespace, mut inside] = of_a_subordinate_user(OTHER);
    let [_another, of_another] = of_a_subordinate_user(ANOTHER);
    let [_roots, of_root] = of_a_subordinate_user(0);
    for theirs in [&of_another, &of_root] {
        let process = theirs.as_owned_by(Owner::User(OTHER));
        assert_eq!(may(process), Answer::No);
        assert_eq!(ask(term(process), &rules), refused);
    }
    // Root's orders never reach further than processes of root's own.
    let roots = inside.as_owned_by(Owner::User(0));
    assert_eq!(may(roots), refused);
    assert_eq!(ask(term(roots), &rules), refused);
    let process = inside.as_owned_by(Owner::User(OTHER));
    let look = Request::Open {
        process,
        view: View::Environment,
    };
    assert_eq!(ask(look, &rules), refused, "to look is another right");
    assert_eq!(may(process), Answer::Yes);
    assert_eq!(ask(term(process), &rules), Answer::Yes);
    assert!(!inside.0.wait().expect("ended").success());
    assert_eq!(may(process), Answer::Gone);
    assert_eq!(
        may(of(std::process::id(), Owner::User(OTHER))),
        Answer::Refused(Refusal::Protected)
    );

    // A set-user-id program has its caller's real user.
    let mut suid = Command::new("setpriv");
    suid.args(["--ruid", &OTHER.to_string(), "sleep", "60"]);
    let mut suid = Sleeper::started(&mut suid);
    let process = suid.as_owned_by(Owner::User(OTHER));
    assert_eq!(may(of(process.pid, Owner::User(ANOTHER))), Answer::No);
    assert_eq!(
        (may(process), ask(term(process), &rules)),
        (Answer::Yes, Answer::Yes)
    );
    suid.0.wait().expect("ended");
    // No number of a user's: to the kernel it would mean root's.
    let process = of_another.as_owned_by(Owner::User(u32::MAX));
    assert!(matches!(ask(term(process), &rules), Answer::Failed(_)));
}

/// A set-user-id file of a subordinate number, executed in the first user namespace: nothing of the process is the user's.
#[test]
fn a_process_that_is_wholly_a_subordinate_user_is_signalled_for_the_user_that_root_gave_the_number() {
    const SUBORDINATE: u32 = 3_000_007;
    if !is_root() {
        return;
    }
    let run = tempfile::tempdir().expect("a folder");
    let file = run.path().join("subuid");
    let rules = rules(run.path()).with_subordinates(&file);
    let mut sleeper = Sleeper::new(Some(SUBORDINATE), &[]);
    let process = sleeper.as_owned_by(Owner::User(OTHER));
    let may = |process| ask(Request::MaySignal { process }, &rules);
    let refused = Answer::Refused(Refusal::Owner);
    let write = |text: &str, mode| {
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    let granted = format!("{OTHER}:3000000:10\n");
    let is_refused = |why: &str| {
        assert_eq!(may(process), Answer::No, "{why}");
        assert_eq!(ask(term(process), &rules), refused, "{why}");
    };
    is_refused("no file");
    write(&format!("{OTHER}:3000000:7\n{}:3000000:10\n", OTHER + 1), 0o644);
    is_refused("another user's");
    write(&granted, 0o666);
    is_refused("each can write it");
    write(&granted, 0o644);
    chown(&file, Some(OTHER), None).expect("changed");
    is_refused("it is not root's");
    chown(&file, Some(0), None).expect("changed");
    assert_eq!(may(of(process.pid, Owner::User(OTHER + 1))), Answer::No);
    // A range does not reach root's processes.
    let root = Sleeper::new(None, &[]);
    write(&format!("{OTHER}:0:4294967295\n"), 0o644);
    assert_eq!(may(root.as_owned_by(Owner::User(OTHER))), Answer::No);
    write(&granted, 0o644);
    assert_eq!(may(process), Answer::Yes);
    assert_eq!(ask(term(process), &rules), Answer::Yes);
    assert!(!sleeper.0.wait().expect("ended").success());
}

#[test]
fn what_a_process_has_mapped_and_open_is_told() {
    let run = tempfile::tempdir().expect("a folder");
    let rules = rules(run.path());
    let shown = run.path().to_str().expect("text").to_owned();
    let sleeper = Sleeper::new(None, &[("DIVVY_RUN_DIR", &shown)]);
    let process = sleeper.as_owned_by(Owner::User(own_uid()));
    let (answer, maps) = perform(
        &Request::Open {
            process,
            view: View::Maps,
        },
        &rules,
    );
    assert_eq!(answer, Answer::Opened);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(maps.expect("a descriptor")), &mut text)
        .expect("read");
    assert!(text.contains("sleep"), "{text}");
    let open = |files| {
        let request = Request::HasOpen {
            process,
            nodes: vec![],
            files,
        };
        ask(request, &rules)
    };
    let program = std::fs::metadata(format!("/proc/{}/exe", process.pid)).expect("a program");
    if is_root() {
        let there = open(vec![(program.dev(), program.ino())]);
        assert_eq!(there, Answer::Yes, "it is mapped");
        assert_eq!(open(vec![(program.dev(), u64::MAX)]), Answer::No);
    }
    let namespaces = Request::MountNamespaces {
        pids: vec![process.pid, u32::MAX],
    };
    let own = mount_namespace(std::process::id()).expect("ours");
    assert_eq!(ask(namespaces, &rules), Answer::Numbers(vec![own, 0]));
}

#[test]
fn of_a_path_only_whether_something_is_there_is_told() {
    let run = tempfile::tempdir().expect("a folder");
    let rules = rules(run.path());
    let look = |path: &Path| {
        let path = path.to_str().expect("text").as_bytes().to_vec();
        ask(Request::Look { path }, &rules)
    };
    assert_eq!(look(run.path()), Answer::Yes);
    let gone = run.path().join("gone");
    assert_eq!(look(&gone), Answer::Failed(rustix::io::Errno::NOENT));
    std::os::unix::fs::symlink("/nowhere", &gone).expect("a link");
    assert_eq!(look(&gone), Answer::Yes, "a link is something, wherever it leads");
    let below_a_file = Path::new("/proc/self/stat/x");
    assert_eq!(look(below_a_file), Answer::Failed(rustix::io::Errno::NOTDIR));
}

#[test]
fn only_a_file_of_ours_is_removed_from_a_folder_that_is_roots_alone() {
    let base = tempfile::tempdir().expect("a folder");
    let (lasting, dynamic) = (base.path().join("etc"), base.path().join("run"));
    for folder in [&lasting, &dynamic] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let rules = rules(base.path()).with_folders(base.path(), [&lasting, &dynamic]);
    let remove = |folder| {
        let slice = 0x0123_abcd;
        ask(Request::RemoveCdi { folder, slice }, &rules)
    };
    let file = dynamic.join("divvy-slice-0123abcd.json");
    std::fs::write(&file, "{}").expect("written");
    std::fs::write(dynamic.join("divvy-nvidia.json"), "{}").expect("written");
    assert_eq!(remove(CdiFolder::Dynamic), Answer::Yes);
    assert!(!file.exists() && dynamic.join("divvy-nvidia.json").exists());
    assert_eq!(remove(CdiFolder::Dynamic), Answer::Yes, "gone is gone");
    // Only a plain file is ours.
    let kept = base.path().join("kept");
    std::fs::write(&kept, "kept").expect("written");
    std::os::unix::fs::symlink(&kept, &file).expect("a link");
    assert_eq!(remove(CdiFolder::Dynamic), Answer::Refused(Refusal::Foreign));
    // A folder that others write in, or that is a link.
    std::fs::set_permissions(&lasting, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    assert_eq!(remove(CdiFolder::Lasting), Answer::Refused(Refusal::Foreign));
    std::fs::remove_dir(&lasting).expect("removed");
    std::os::unix::fs::symlink(&dynamic, &lasting).expect("a link");
    assert!(matches!(remove(CdiFolder::Lasting), Answer::Failed(_)));
    std::fs::remove_file(&lasting).expect("removed");
    assert_eq!(remove(CdiFolder::Lasting), Answer::Yes);
    assert!(kept.exists() && file.is_symlink());
}

fn device() -> Device {
    Device::parse("GPU-00112233-4455-6677-8899-aabbccddeeff").expect("a device")
}

fn mps(uid: u32, word: MpsWord) -> Request {
    Request::Mps {
        uid,
        device: device(),
        word,
    }
}

/// A run directory of the agent's with the folder of a daemon of user `OTHER`, and a fake control program that says who it is.
fn ground(base: &Path) -> (std::path::PathBuf, std::path::PathBuf, Rules) {
    let run = base.join("run");
    let daemon = run.join(format!("mps/user-{OTHER}/{}", device()));
    std::fs::create_dir_all(&daemon).expect("folders");
    let tools = base.join("tools");
    std::fs::create_dir(&tools).expect("a folder");
    for folder in [base, &run, &tools] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let program = tools.join("nvidia-cuda-mps-control");
    let script = "#!/bin/sh\necho $(id -u) $(id -g) $(id -G): \"$@\" $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY\n\
                  test $# = 0 && cat\ntouch $CUDA_MPS_PIPE_DIRECTORY/control; env | grep -c SECRET; true\n";
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let agent = Rules::of_helper(own_uid(), &run).expect("rules");
    let rules = agent.with_folders(&tools, [&tools, &tools]);
    (daemon, program, rules)
}

#[test]
fn a_users_daemon_is_the_users_process_in_the_users_folders() {
    if !is_root() {
        return;
    }
    let base = tempfile::tempdir().expect("a folder");
    let (daemon, _, rules) = ground(base.path());
    assert_eq!(ask(mps(OTHER, MpsWord::MakeFolders), &rules), Answer::Yes);
    assert_eq!(
        ask(mps(OTHER, MpsWord::MakeFolders), &rules),
        Answer::Yes,
        "and again"
    );
    let pipe = daemon.join("pipe");
    let made = std::fs::metadata(&pipe).expect("made");
    assert_eq!((made.uid(), made.mode() & 0o777), (OTHER, 0o700));
    assert_eq!(
        std::fs::metadata(&daemon).expect("there").uid(),
        0,
        "what is above stays"
    );
    let start = ask(mps(OTHER, MpsWord::Start { partitioned: true }), &rules);
    let said = format!(
        "{OTHER} {OTHER} {OTHER}: -d -S {} {}\n0\n",
        device(),
        pipe.display()
    );
    assert_eq!(start, Answer::Words(said));
    let Answer::Words(said) = ask(mps(OTHER, MpsWord::AddPartition { chunks: 3 }), &rules) else {
        panic!("words");
    };
    assert!(
        said.contains(&format!("\nsm_partition add {} 3\n", device())),
        "{said}"
    );
    assert_eq!(std::fs::metadata(pipe.join("control")).expect("its").uid(), OTHER);
    assert_eq!(ask(mps(OTHER, MpsWord::RemoveFolders), &rules), Answer::Yes);
    assert!(!pipe.exists() && !daemon.join("log").exists());
    assert_eq!(
        ask(mps(u32::MAX, MpsWord::Servers), &rules),
        Answer::Refused(Refusal::User)
    );
}

#[test]
fn no_folder_is_given_away_that_the_helper_did_not_make() {
    if !is_root() {
        return;
    }
    let base = tempfile::tempdir().expect("a folder");
    let (daemon, _, rules) = ground(base.path());
    let precious = base.path().join("precious");
    std::fs::create_dir(&precious).expect("a folder");
    let pipe = daemon.join("pipe");
    std::os::unix::fs::symlink(&precious, &pipe).expect("a link");
    let foreign = Answer::Refused(Refusal::Foreign);
    assert_eq!(ask(mps(OTHER, MpsWord::MakeFolders), &rules), foreign);
    std::fs::remove_file(&pipe).expect("removed");
    // One that was there, and is root's.
    std::fs::create_dir(&pipe).expect("a folder");
    assert_eq!(ask(mps(OTHER, MpsWord::MakeFolders), &rules), foreign);
    std::fs::remove_dir(&pipe).expect("removed");
    // Above it, a folder of another user's, one that others write in, a link.
    chown(&daemon, Some(OTHER), None).expect("root may");
    assert_eq!(ask(mps(OTHER, MpsWord::MakeFolders), &rules), foreign);
    chown(&daemon, Some(0), None).expect("root may");
    std::fs::set_permissions(&daemon, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    assert_eq!(ask(mps(OTHER, MpsWord::MakeFolders), &rules), foreign);
    std::fs::remove_dir(&daemon).expect("removed");
    std::os::unix::fs::symlink(&precious, &daemon).expect("a link");
    assert_eq!(ask(mps(OTHER, MpsWord::MakeFolders), &rules), foreign);
    assert_eq!(std::fs::metadata(&precious).expect("there").uid(), 0);
    assert_eq!(std::fs::read_dir(&precious).expect("readable").count(), 0);
}

#[test]
fn folders_that_are_swapped_while_they_are_made_give_nothing_away() {
    if !is_root() {
        return;
    }
    let base = tempfile::tempdir().expect("a folder");
    let (daemon, _, rules) = ground(base.path());
    let precious = base.path().join("precious");
    std::fs::create_dir(&precious).expect("a folder");
    let pipe = daemon.join("pipe");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let link = daemon.join("link");
    std::thread::scope(|scope| {
        // What an agent may do that was taken over: it owns the folder above.
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _swapped =
                    rustix::fs::renameat_with(rustix::fs::CWD, &pipe, rustix::fs::CWD, &link, flags);
            }
        });
        for _ in 0..500 {
            for path in [&pipe, &link] {
                let _link = std::fs::remove_file(path);
                let _folder = std::fs::remove_dir(path);
            }
            let _there = std::os::unix::fs::symlink(&precious, &link);
            let _any = ask(mps(OTHER, MpsWord::MakeFolders), &rules);
            if std::fs::metadata(&precious).expect("there").uid() != 0 {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                panic!("a folder that the helper did not make was given away");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn folders_that_are_swapped_while_they_are_emptied_have_root_remove_nothing_else() {
    if !is_root() {
        return;
    }
    let base = tempfile::tempdir().expect("a folder");
    let (_, _, rules) = ground(base.path());
    // Root's own daemon: a process of root's empties its folders. Beside an agent of another user there is none.
    assert_eq!(
        ask(mps(0, MpsWord::RemoveFolders), &rules),
        Answer::Refused(Refusal::RootsDaemon)
    );
    let rules = Rules::of_oneself(&base.path().join("run"));
    let daemon = base.path().join(format!("run/mps/user-0/{}", device()));
    std::fs::create_dir_all(&daemon).expect("folders");
    let precious = base.path().join("precious");
    std::fs::create_dir_all(precious.join("log/deep")).expect("a folder");
    let link = daemon.with_file_name("link");
    std::os::unix::fs::symlink(&precious, &link).expect("a link");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // What an agent may do that was taken over: it owns the folder above.
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _swapped =
                    rustix::fs::renameat_with(rustix::fs::CWD, &daemon, rustix::fs::CWD, &link, flags);
            }
        });
        let mut emptied = 0;
        // Where the other thread waits for a processor, the link is there for long.
        for round in 0..100_000 {
            if round >= 200 && emptied > 0 {
                break;
            }
            emptied += u32::from(ask(mps(0, MpsWord::RemoveFolders), &rules) == Answer::Yes);
            std::thread::yield_now();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(emptied > 0, "the folder was to be there at times");
    });
    assert!(
        precious.join("log/deep").exists(),
        "root removed what a link led to"
    );
}
