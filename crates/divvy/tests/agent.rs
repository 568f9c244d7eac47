//! The agent: started once, killed at any moment, and nothing lost.

mod common;

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use common::{Host, is_alive, kill, until};
use divvy_ledger::attach;

const GIB: u64 = 1 << 30;

#[test]
fn of_many_that_race_to_start_one_serves() {
    let host = Host::new();
    let runs: Vec<_> = (0..8)
        .map(|_| {
            host.divvy(&["run", "--memory", "1GiB", "--", "sleep", "0.2"])
                .stderr(Stdio::piped())
                .spawn()
                .expect("divvy starts")
        })
        .collect();
    for run in runs {
        let output = run.wait_with_output().expect("divvy ends");
        assert!(output.status.success(), "{output:?}");
    }
    let log = std::fs::read_to_string(host.run_dir().join("agent.log")).expect("a log");
    assert_eq!(log.matches("agent starts").count(), 1, "{log}");
    until("no slice is left", || host.slices().is_empty());
    // A second one for the same directory ends at once.
    let (status, said) = host.refused(&["agent", "serve"]);
    assert_eq!((status, said.contains("error[D0031]")), (3, true), "{said}");
}

#[test]
fn killed_in_the_middle_it_loses_nothing() {
    let host = Host::new();
    let mut tenant = host.idle("steady", "1GiB");
    let before = host.slice("steady");
    host.kill_agent();
    assert!(
        tenant.child.try_wait().expect("a child").is_none(),
        "the program goes on"
    );

    // The next look starts an agent, which takes the slice back.
    let after = host.slice("steady");
    assert_eq!(after["memory_limit_bytes"], GIB);
    assert_eq!(after["id"], before["id"]);
    assert_eq!(after["page_server_pid"], before["page_server_pid"]);
    host.text(&["resize", "steady", "--memory", "2GiB"]);
    host.kill_agent();
    assert_eq!(
        host.slice("steady")["memory_limit_bytes"],
        2 * GIB,
        "the new limit is remembered"
    );
    let (_, said) = host.refused(&["run", "--memory", "79GiB", "--", "true"]);
    assert!(said.contains("slice steady holds 2 GiB"), "{said}");

    // The next agent clears away slices that ended while no agent ran.
    host.kill_agent();
    drop(tenant);
    until("the slice is gone", || host.slices().is_empty());
    until("its files are gone", || {
        std::fs::read_dir(host.run_dir().join("slices"))
            .expect("a folder")
            .next()
            .is_none()
    });
}

#[test]
fn a_slice_ends_with_its_page_server_and_its_program() {
    let host = Host::new();
    let tenant = host.idle("doomed", "1GiB");
    kill(tenant.child.id(), "KILL");
    until("the slice is gone", || host.slices().is_empty());

    let quick = host.finish(&["run", "--memory", "1GiB", "--", "true"]);
    assert!(quick.status.success());
    assert!(host.slices().is_empty(), "gone when `divvy run` returns");
}

#[test]
fn kill_ends_the_whole_tree() {
    let host = Host::new();
    let mut child = host
        .divvy(&[
            "run",
            "--name",
            "tree",
            "--memory",
            "1GiB",
            "--",
            "sh",
            "-c",
            "sleep 600 & echo $!; wait",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
    let grandchild: u32 = line.trim().parse().expect("a process id");

    let told = host.json(&["kill", "tree", "--dry-run"]);
    assert!(
        told["pids"]
            .as_array()
            .expect("pids")
            .iter()
            .any(|pid| *pid == grandchild)
    );
    assert!(is_alive(grandchild), "nothing happened yet");
    host.text(&["kill", "tree", "--yes"]);
    until("the grandchild is gone", || !is_alive(grandchild));
    assert_eq!(child.wait().expect("divvy ends").code(), Some(143));
    until("the slice is gone", || host.slices().is_empty());
}

#[test]
fn a_stale_socket_and_a_foreign_folder_in_the_slices_are_no_obstacle() {
    let host = Host::new();
    std::fs::create_dir_all(host.run_dir().join("slices/foreign")).expect("made");
    std::fs::write(host.run_dir().join("slices/0badf00d.json"), "{ not json").expect("written");
    drop(UnixListener::bind(host.run_dir().join("agent.sock")).expect("bound"));
    std::fs::set_permissions(
        host.run_dir(),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .expect("a mode");
    host.text(&["run", "--memory", "1GiB", "--", "true"]);
    assert!(host.slices().is_empty());
}

/// The page server's side of a protocol of the future: see `crates/ledger/src/attach/wire.rs` for the 12 bytes that
/// never change.
#[test]
fn pages_of_another_version_are_refused_by_both_numbers() {
    let host = Host::new();
    let tenant = host.idle("future", "1GiB");
    let slice = host.slice("future");
    let id = slice["id"].as_str().expect("an id").to_owned();
    host.kill_agent();
    // Another page server on the slice's socket, of page version 4711.
    let socket = host.run_dir().join("slices").join(&id).join("control.sock");
    std::fs::remove_file(&socket).expect("removed");
    let listener = UnixListener::bind(&socket).expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut message = [0; 32];
            if stream.read_exact(&mut message).is_ok() {
                message[8..12].copy_from_slice(&4711_u32.to_ne_bytes());
                let _gone = std::io::Write::write_all(&mut stream, &message);
            }
        }
    });
    let slice = host.slice("future");
    let log = std::fs::read_to_string(host.run_dir().join("agent.log")).expect("a log");
    assert!(log.contains("D0060") && log.contains("4711"), "{log}");
    let ours = divvy_ledger::PAGE_ABI_VERSION.to_string();
    assert!(log.contains(&format!("version {ours}")), "{log}");
    assert!(slice["warnings"][0].as_str().is_some(), "{slice}");
    // It still counts, and it cannot be changed.
    let (status, said) = host.refused(&["resize", "future", "--memory", "2GiB"]);
    assert_eq!((status, said.contains("4711")), (1, true), "{said}");
    drop(tenant);
}

#[test]
fn a_corrupted_ledger_takes_no_other_slice_with_it() {
    let host = Host::new();
    let _victim = host.idle("corrupted", "1GiB");
    let _bystander = host.idle("bystander", "1GiB");
    let id = host.slice("corrupted")["id"].as_str().expect("an id").to_owned();
    let socket = host.run_dir().join("slices").join(id).join("control.sock");
    // As a process of the same user may, on the cooperative level.
    let pages = attach::recall(&socket, 0).expect("pages");
    let file = std::fs::File::from(pages.ledger.share().expect("a descriptor"));
    let noise: Vec<u8> = (0..file.metadata().expect("a size").len())
        .map(|n| (n * 131 % 251) as u8)
        .collect();
    file.write_all_at(&noise[64..], 64).expect("written");

    for _ in 0..3 {
        assert_eq!(host.slices().len(), 2);
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    assert_eq!(host.slice("bystander")["memory_used_bytes"], 0);
    assert!(host.slice("bystander")["warnings"].is_null());
    let corrupted = host.slice("corrupted");
    assert!(
        corrupted["memory_used_bytes"].as_u64().expect("bytes") <= GIB,
        "no number of that page is believed: {corrupted}"
    );
    host.text(&["kill", "corrupted", "--yes"]);
    until("the corrupted slice is gone", || host.slices().len() == 1);
}

/// A tenant of `slice`, which is this very process, and its ledger to write into.
fn lying_tenant(host: &Host, slice: &str) -> (attach::Attached, std::fs::File) {
    let id = host.slice(slice)["id"].as_str().expect("an id").to_owned();
    let folder = host.run_dir().join("slices").join(id);
    let (socket, control) = (folder.join("attach.sock"), folder.join("control.sock"));
    let pages = attach::recall(&control, 0).expect("pages");
    let file = std::fs::File::from(pages.ledger.share().expect("a descriptor"));
    let place = attach::connect(&socket, 0).expect("a place");
    assert_eq!(place.slot().index(), 0);
    (place, file)
}

#[test]
fn what_a_tenant_writes_of_itself_is_not_shown_where_it_cannot_be() {
    const PLACE: u64 = 4096;
    let (pid, host_pid, spill_word) = (PLACE + 4, PLACE + 8, 128);
    for (at, lie, what) in [
        (host_pid, u32::MAX, "process 4294967295 is in it"),
        (pid, 0x8000_0001, "which is no process's number"),
        (pid, 0, "which is no process's number"),
        (spill_word, 1 << 30, "beyond the share where 0 B is allowed"),
    ] {
        let host = Host::new();
        let _victim = host.idle("liar", "1GiB");
        let _bystander = host.idle("bystander", "1GiB");
        let (_place, ledger) = lying_tenant(&host, "liar");
        until("it is in the list", || {
            host.slice("liar")["processes"][0]["pid"] == std::process::id()
        });
        ledger.write_all_at(&lie.to_ne_bytes(), at).expect("written");
        let liar = host.slice("liar");
        assert_eq!(liar["usage_unknown"], true, "{what}: {liar}");
        let warning = liar["warnings"][0].as_str().unwrap_or_default();
        assert!(warning.contains(what), "{what}: {liar}");
        assert_eq!(liar["trouble"]["code"], "D0061", "{what}: {liar}");
        let table = host.text(&["ps"]);
        assert!(table.contains("use not known (D0061)"), "{table}");
        let shown = host.text(&["inspect", "liar"]);
        assert!(
            shown.contains("D0061: the slice's ledger cannot be read"),
            "{shown}"
        );
        assert!(shown.contains("divvy explain D0061"), "{shown}");
        for process in liar["processes"].as_array().expect("processes") {
            assert_ne!(process["pid"], lie, "{liar}");
        }
        let bystander = host.slice("bystander");
        assert_eq!(bystander["memory_used_bytes"], 0);
        assert!(bystander["warnings"].is_null(), "{bystander}");
        assert!(bystander["usage_unknown"].is_null(), "{bystander}");
        host.text(&["resize", "bystander", "--memory", "2GiB"]);
    }
}

#[test]
fn a_process_that_is_not_there_is_said_not_to_be() {
    let host = Host::new();
    let _victim = host.idle("liar", "1GiB");
    let (_place, ledger) = lying_tenant(&host, "liar");
    // A number that a process may have, and that none of a host this small has.
    let (absent, host_pid) = (4_194_303_u32, 4096 + 8);
    ledger
        .write_all_at(&absent.to_ne_bytes(), host_pid)
        .expect("written");
    let liar = host.slice("liar");
    let said = format!("its ledger tells of process {absent}, which is not to be found on this host");
    assert_eq!(liar["warnings"][0], said, "{liar}");
    assert!(host.text(&["inspect", "liar"]).contains(&said));
}

#[test]
fn an_agent_with_nothing_to_do_leaves() {
    let host = Host::new();
    let output = host
        .divvy(&["run", "--memory", "1GiB", "--", "true"])
        .env("DIVVY_IDLE_TIMEOUT", "100ms")
        .output()
        .expect("divvy starts");
    assert!(output.status.success(), "{output:?}");
    let socket = host.run_dir().join("agent.sock");
    until("the agent has left", || !socket.exists());
    assert!(host.slices().is_empty());
    host.text(&["run", "--memory", "1GiB", "--", "true"]);
}

#[test]
fn the_agent_holds_nothing_of_the_process_that_started_it() {
    let host = Host::new();
    // A descriptor that the shell opened without closing it for its children.
    let output = host
        .divvy(&["run", "--memory", "1GiB", "--", "true"])
        .output()
        .expect("divvy starts");
    assert!(output.status.success());
    host.kill_agent();
    let lock = host.folder().join("lock");
    let script = format!("exec 7>{}; \"$0\" run --memory 1GiB -- true", lock.display());
    let status = host
        .divvy(&[])
        .get_envs()
        .fold(
            &mut std::process::Command::new("sh"),
            |command, (name, value)| match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            },
        )
        .args(["-c", &script])
        .arg(common::divvy())
        .status()
        .expect("a shell runs");
    assert!(status.success());
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", host.agent())).expect("a living agent");
    for entry in descriptors.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        assert_ne!(target, lock, "descriptor {:?}", entry.file_name());
    }
}
