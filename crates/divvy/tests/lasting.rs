//! `divvy slice`: names, refusals, documents, and what `ps`, `inspect` and `kill` make of a slice that stays.

mod common;

use std::process::Stdio;

use common::{Host, is_alive, until};

const GIB: u64 = 1 << 30;

#[test]
fn made_listed_joined_and_deleted() {
    let host = Host::new();
    let shown = host.text(&["slice", "create", "alice", "--memory", "8GiB", "--dry-run"]);
    assert!(shown.starts_with("would create alice: 8 GiB of "), "{shown}");
    assert!(host.text(&["slice", "list", "-q"]).is_empty());

    let made = host.json(&["slice", "create", "alice", "--memory", "8GiB", "--compute", "25%"]);
    assert_eq!((&made["kind"], &made["lasting"]), (&"Slice".into(), &true.into()));
    assert_eq!((&made["state"], &made["compute"]), (&"idle".into(), &2500.into()));
    assert_eq!(host.text(&["slice", "list", "-q"]), "alice\n");
    assert_eq!(host.slice("alice")["state"], "idle");

    let (status, said) = host.refused(&["slice", "create", "alice", "--memory", "1GiB"]);
    assert_eq!((status, said.contains("error[D0021]")), (1, true), "{said}");
    // A wrong name beside a right one changes nothing, and is named.
    for words in [
        ["slice", "delete", "alice", "absent"].as_slice(),
        &["kill", "alice", "absent"],
    ] {
        let (status, said) = host.refused(words);
        assert!(
            status == 1 && said.contains("error[D0020]") && said.contains("absent"),
            "{said}"
        );
        assert_eq!(host.text(&["slice", "list", "-q"]), "alice\n");
    }
    let (status, said) = host.refused(&["slice", "create", "-x", "--memory", "1GiB"]);
    assert_eq!(status, 2, "{said}");
    let (status, said) = host.refused(&["slice", "create", "bob", "--memory", "75GiB"]);
    assert!(
        status == 1 && said.contains("slice alice holds 8 GiB"),
        "{status} {said}"
    );

    // It is promised whether anything runs in it or not, and a program in it is one of its runs.
    let mut run = host
        .divvy(&["run", "--slice", "alice", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("divvy starts");
    until("the run is in", || {
        host.slice("alice")["runs"][0]["command"][0] == "cat"
    });
    assert_eq!(host.slice("alice")["runs"][0]["pid"], run.id());
    let (status, said) = host.refused(&["slice", "delete", "alice"]);
    assert_eq!((status, said.contains("error[D0026]")), (1, true), "{said}");
    let told = host.text(&["slice", "delete", "alice", "--dry-run"]);
    assert!(told.starts_with("would refuse: "), "{told}");
    host.text(&["kill", "alice", "--yes"]);
    assert_eq!(run.wait().expect("divvy ends").code(), Some(143));
    assert_eq!(host.slice("alice")["state"], "idle", "a lasting slice stays");
    host.text(&["slice", "delete", "alice"]);
    assert!(host.slices().is_empty());
    until("its files are gone", || {
        std::fs::read_dir(host.run_dir().join("slices"))
            .expect("a folder")
            .next()
            .is_none()
    });
}

#[test]
fn a_run_is_remembered_by_the_next_agent() {
    let host = Host::new();
    host.text(&["slice", "create", "alice", "--memory", "1GiB"]);
    let mut run = host
        .divvy(&["run", "--slice", "alice", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("divvy starts");
    until("the run is in", || !host.slice("alice")["runs"].is_null());
    host.kill_agent();
    assert_eq!(host.slice("alice")["runs"][0]["pid"], run.id());
    let (_, said) = host.refused(&["slice", "delete", "alice"]);
    assert!(said.contains("error[D0026]"), "{said}");
    drop(run.stdin.take());
    assert!(run.wait().expect("divvy ends").success());
    host.text(&["slice", "delete", "alice"]);
}

#[test]
fn what_is_no_lasting_slice() {
    let host = Host::new();
    let _plain = host.idle("plain", "1GiB");
    let (status, said) = host.refused(&["run", "--slice", "plain", "--", "true"]);
    assert_eq!((status, said.contains("error[D0027]")), (125, true), "{said}");
    let (status, said) = host.refused(&["slice", "delete", "plain", "--yes"]);
    assert_eq!((status, said.contains("error[D0027]")), (1, true), "{said}");
    let (status, said) = host.refused(&["run", "--slice", "absent", "--", "true"]);
    assert_eq!((status, said.contains("error[D0020]")), (125, true), "{said}");
    let (status, said) = host.refused(&["run", "--slice", "plain", "--memory", "1GiB", "--", "true"]);
    assert_eq!((status, said.contains("error[D0001]")), (125, true), "{said}");
    assert!(host.text(&["slice", "list", "-q"]).is_empty());
}

#[test]
fn its_page_server_goes_when_its_directory_does() {
    let host = Host::new();
    let made = host.json(&["slice", "create", "alice", "--memory", "1GiB"]);
    assert_eq!(made["memory_limit_bytes"], GIB);
    let page_server = u32::try_from(made["page_server_pid"].as_u64().expect("a page server")).expect("small");
    let run = std::fs::read_dir(format!("/proc/{page_server}/fd")).expect("a living page server");
    // Its three standard streams, its three sockets (one for the agent, one for containers), the folder of its sockets, and
    // the two pages. It may just be serving the agent: a connection and what is sent there.
    assert!(run.count() <= 12);
    host.kill_agent();
    std::fs::remove_dir_all(host.run_dir().join("slices")).expect("removed");
    until("the page server ends by itself", || !is_alive(page_server));
}
