//! An agent and a helper over a socket: who is served, what happens when the helper goes and comes back.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_model::Code;
use divvy_privileged::answer::Answer;
use divvy_privileged::request::{Owner, Process, Request, View};
use divvy_privileged::serve::listen;
use divvy_privileged::{Privileged, Remote, Rules, start_ticks};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

fn listener(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&socket, &SocketAddrUnix::new(path).expect("an address")).expect("bound");
    rustix::net::listen(&socket, 8).expect("listening");
    socket
}

/// A helper on a thread, until its listener is shut down.
fn helper(path: &Path, agent_uid: u32, run: &Path) -> (Arc<OwnedFd>, std::thread::JoinHandle<()>) {
    let socket = Arc::new(listener(path));
    let (its_own, rules) = (socket.clone(), Rules::of_helper(agent_uid, run).expect("rules"));
    let thread = std::thread::spawn(move || {
        let _shut_down = listen(&its_own, &rules);
    });
    (socket, thread)
}

fn end((socket, thread): (Arc<OwnedFd>, std::thread::JoinHandle<()>), path: &Path) {
    rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both).expect("shut down");
    thread.join().expect("it ends");
    std::fs::remove_file(path).expect("removed");
}

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

#[test]
fn requests_are_answered_and_descriptors_come_along() {
    let base = tempfile::tempdir().expect("a folder");
    let path = base.path().join("helper.sock");
    let helper = helper(&path, own_uid(), base.path());
    let remote = Remote::at(&path);
    assert!(remote.is_separate());
    assert_eq!(
        remote.ask(&Request::Hello).expect("it answers").answer,
        Answer::Yes
    );
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .env("DIVVY_RUN_DIR", base.path())
        .spawn()
        .expect("sleep runs");
    let process = Process {
        pid: child.id(),
        start_ticks: start_ticks(child.id()).expect("it lives"),
        owner: Owner::User(own_uid()),
    };
    // Until it has become `sleep` it has this test's environment.
    let begin = Instant::now();
    loop {
        let open = Request::Open {
            process,
            view: View::Environment,
        };
        let reply = remote.ask(&open).expect("it answers");
        if let Some(descriptor) = reply.descriptor {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut std::fs::File::from(descriptor), &mut text).expect("read");
            if text.windows(14).any(|window| window == b"DIVVY_RUN_DIR=") {
                break;
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", reply.answer);
    }
    child.kill().expect("killed");
    child.wait().expect("reaped");
    drop(remote);
    end(helper, &path);
}

#[test]
fn a_helper_that_went_is_told_of_and_found_again() {
    let base = tempfile::tempdir().expect("a folder");
    let path = base.path().join("helper.sock");
    let remote = Remote::at(&path);
    let fault = remote.ask(&Request::Hello).expect_err("there is none");
    assert_eq!(fault.code, Code::Privilege);
    assert!(fault.message.contains("helper"), "{fault}");
    let first = helper(&path, own_uid(), base.path());
    let ask_until = |there: bool| {
        let begin = Instant::now();
        while remote.ask(&Request::Hello).is_ok() != there {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    ask_until(true);
    end(first, &path);
    // Its connection lives in its thread: a process that is killed takes that along.
    let second = helper(&path, own_uid(), base.path());
    ask_until(true);
    drop(remote);
    end(second, &path);
}

#[test]
fn only_the_agents_user_is_served() {
    let base = tempfile::tempdir().expect("a folder");
    let path = base.path().join("helper.sock");
    let helper = helper(&path, own_uid() + 1, base.path());
    let remote = Remote::at(&path);
    remote.ask(&Request::Hello).expect_err("another user's helper");
    end(helper, &path);
}

#[test]
fn a_message_that_is_not_understood_ends_the_connection_and_not_the_helper() {
    let base = tempfile::tempdir().expect("a folder");
    let path = base.path().join("helper.sock");
    let helper = helper(&path, own_uid(), base.path());
    let kind = SocketType::SEQPACKET;
    for bytes in [&b"GET / HTTP/1.1"[..], &[0xff; 19_000], &[0; 60_000], b"x"] {
        let rogue = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        rustix::net::connect(&rogue, &SocketAddrUnix::new(&path).expect("an address")).expect("connected");
        rustix::net::send(&rogue, bytes, rustix::net::SendFlags::NOSIGNAL).expect("sent");
        let mut answer = [0; 256];
        let hung_up = loop {
            match rustix::net::recv(&rogue, &mut answer[..], rustix::net::RecvFlags::empty()) {
                Ok((0, _)) | Err(_) => break true,
                Ok((count, _)) => assert_eq!(
                    Answer::decode(&answer[..count]),
                    Ok((0, Answer::Refused(divvy_privileged::answer::Refusal::Malformed)))
                ),
            }
        };
        assert!(hung_up);
        assert!(
            Remote::at(&path).ask(&Request::Hello).is_ok(),
            "others are served"
        );
    }
    end(helper, &path);
}
