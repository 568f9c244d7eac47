//! One caller cannot starve the rest: half-open connections, an agent without descriptors, a connection whose caller has
//! ended, the queue's places and the log's length.

mod common;

use std::fs;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Host, until};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn connect(host: &Host) -> UnixStream {
    let stream = UnixStream::connect(host.run_dir().join("agent.sock")).expect("an agent listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a socket");
    stream
}

/// Asks over a connection that is there; the status and the document.
fn ask(stream: &mut UnixStream, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("written");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("an answer");
    let (head, body) = heard.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (
        status.expect("a status"),
        serde_json::from_str(body).expect("a document"),
    )
}

#[test]
fn half_open_connections_do_not_silence_the_agent() {
    let host = Host::new();
    let _tenant = host.idle("steady", "1GiB");
    let mut own = getrlimit(Resource::Nofile);
    own.current = own.maximum;
    setrlimit(Resource::Nofile, own).expect("as many as there may be");
    // More than the agent takes of one user, and than the descriptors that a process has by default.
    let held: Vec<UnixStream> = (0..1100)
        .map(|_| {
            let mut stream = connect(&host);
            let _refused = stream.write_all(b"GET /v1/status HT");
            stream
        })
        .collect();
    until("others are answered", || {
        host.finish(&["agent", "status"]).status.success()
    });
    assert_eq!(host.slice("steady")["state"], "running");
    let open = fs::read_dir(format!("/proc/{}/fd", host.agent()))
        .expect("it lives")
        .count();
    assert!(open < 500, "{open} descriptors");
    // Each is closed in the end, though nothing was said on it.
    for mut stream in held {
        let mut heard = [0; 4096];
        while stream.read(&mut heard).is_ok_and(|bytes| bytes > 0) {}
    }
}

#[test]
fn an_agent_that_is_out_of_descriptors_takes_nothing_for_dead() {
    let host = Host::new();
    host.text(&["slice", "create", "kept", "--memory", "1GiB"]);
    let mut anchor = Command::new("sleep").arg("600").spawn().expect("sleep starts");
    let attend = json!({ "process": anchor.id() });
    let (status, _) = ask(&mut connect(&host), "POST", "/v1/slices/kept/attend", &attend);
    assert_eq!(status, 200);
    let agent = i32::try_from(host.agent()).ok().and_then(Pid::from_raw);
    let usual = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..usual
    };
    let before = prlimit(agent, Resource::Nofile, none).expect("our own agent");
    // Many ticks and rounds.
    std::thread::sleep(Duration::from_secs(3));
    prlimit(agent, Resource::Nofile, before).expect("our own agent");
    assert_eq!(host.slice("kept")["state"], "idle");
    let log = fs::read_to_string(host.run_dir().join("agent.log")).expect("a log");
    assert!(!log.contains("slice deleted"), "{log}");
    // It goes when its lifetime anchor really does.
    anchor.kill().expect("killed");
    anchor.wait().expect("reaped");
    until("the slice is gone", || host.slices().is_empty());
}

/// What another process of [`a_connection_of_a_process_that_ended_decides_nothing`] does: it connects, hands the connection
/// over by its standard input, and ends.
#[test]
fn connects_for_another_process() {
    let Some(socket) = std::env::var_os("DIVVY_TEST_CONNECTS_TO") else {
        return;
    };
    let connection = UnixStream::connect(socket).expect("an agent listens");
    let fds = [connection.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
    let said = [IoSlice::new(b"x")];
    sendmsg(std::io::stdin(), &said, &mut beside, SendFlags::empty()).expect("handed over");
}

#[test]
fn a_connection_of_a_process_that_ended_decides_nothing() {
    let host = Host::new();
    host.text(&["slice", "create", "kept", "--memory", "1GiB"]);
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let mut child = divvy_own_process::other("connects_for_another_process")
        .env("DIVVY_TEST_CONNECTS_TO", host.run_dir().join("agent.sock"))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut heard = [0];
    recvmsg(
        &ours,
        &mut [IoSliceMut::new(&mut heard)],
        &mut beside,
        RecvFlags::empty(),
    )
    .expect("handed over");
    let handed = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let mut connection = UnixStream::from(handed.expect("a connection"));
    assert!(child.wait().expect("it ends").success());

    let resize = json!({ "memory": { "bytes": 10 * GIB } });
    let (status, told) = ask(&mut connection, "PATCH", "/v1/slices/kept", &resize);
    assert_eq!((status, &told["code"]), (403, &json!("D0033")), "{told}");
    assert!(
        told["message"]
            .as_str()
            .is_some_and(|message| message.contains("has ended")),
        "{told}"
    );
    assert_eq!(host.slice("kept")["memory_limit_bytes"], GIB);
    let (status, _) = ask(&mut connect(&host), "PATCH", "/v1/slices/kept", &resize);
    assert_eq!(status, 200, "of a process that lives it is taken");
}

#[test]
fn a_process_has_one_place_in_the_queue() {
    let host = Host::new();
    let _tenant = host.idle("large", "79GiB");
    let request = |memory: u64| {
        let ask =
            json!({ "request": { "memory": { "bytes": memory } }, "command": vec!["x".repeat(1000); 100] });
        json!({ "ask": ask, "patience_ms": 0 })
    };
    let place = |memory: u64| {
        let (status, told) = ask(&mut connect(&host), "POST", "/v1/queue", &request(memory));
        assert_eq!((status, &told["count"]), (200, &json!(1)), "{told}");
        told["ticket"].as_str().expect("a ticket").to_owned()
    };
    let first = place(2 * GIB);
    assert_eq!(place(2 * GIB), first, "the same request has the same place");
    let second = place(3 * GIB);
    assert_ne!(second, first, "another request begins at the end");
    until("it is written down", || {
        let stored = fs::read(host.run_dir().join("queue.json")).unwrap_or_default();
        let stored: Value = serde_json::from_slice(&stored).unwrap_or_default();
        let tickets: Vec<&Value> = stored
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| &one["ticket"])
            .collect();
        tickets == [&json!(second)] && stored.to_string().len() < 8192
    });
}

#[test]
fn the_log_begins_again_when_it_is_full() {
    let host = Host::new();
    host.text(&["slice", "create", "first", "--memory", "1GiB"]);
    let log = host.run_dir().join("agent.log");
    let mut file = fs::OpenOptions::new().append(true).open(&log).expect("a log");
    file.write_all(&vec![b'x'; 9 << 20]).expect("written");
    let aside = host.run_dir().join("agent.log.1");
    until("the log was put aside", || {
        let length = |path: &std::path::Path| fs::metadata(path).map_or(0, |meta| meta.len());
        length(&aside) > 9 << 20 && length(&log) < 1 << 20
    });
    host.text(&["slice", "create", "second", "--memory", "1GiB"]);
    let text = fs::read_to_string(&log).expect("a log");
    assert!(text.contains("slice=\"second\""), "{text}");
}
