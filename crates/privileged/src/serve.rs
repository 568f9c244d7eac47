//! The helper's loop: a thread for each channel, and few channels.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{socket_acceptconn, socket_peercred};
use rustix::net::{SocketFlags, accept_with};

use crate::answer::{Answer, Refusal};
use crate::channel::{Channel, inherited};
use crate::process;
use crate::request::Request;
use crate::rules::{Rules, perform_with};
use crate::stopped::STOPS;

/// An agent has two connections; while one of its is replaced, there are more for a moment.
const MOST: usize = 4;

/// Serves the agent until it hangs up, on the channels that are standard input and output. Where standard input is a
/// socket that listens, serves every connection of the agent's user, without end.
///
/// # Errors
/// The system's reason; `InvalidInput` where standard input is neither.
pub fn serve(rules: &Rules) -> io::Result<()> {
    let input = rustix::stdio::stdin();
    if socket_acceptconn(input).unwrap_or(false) {
        let listener = rustix::io::fcntl_dupfd_cloexec(input, 3)?;
        return listen(&listener, rules);
    }
    let agent = rustix::process::getppid().map_or(0, |agent| agent.as_raw_nonzero().get().unsigned_abs());
    let rules = Arc::new(rules.for_agent(agent));
    let [quick, slow] = inherited()?;
    let its_own = rules.clone();
    std::thread::Builder::new().spawn(move || answer_all(&slow, &its_own))?;
    answer_one_agent(&quick, &rules);
    Ok(())
}

/// Serves each connection of the agent's user.
///
/// # Errors
/// The system's reason, where nothing can be accepted any more.
pub fn listen(listener: &OwnedFd, rules: &Rules) -> io::Result<()> {
    let alive = Arc::new(AtomicUsize::new(0));
    loop {
        let connection = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(connection) => connection,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Ok(peer) = socket_peercred(&connection) else {
            continue;
        };
        if peer.uid.as_raw() != rules.agent_uid || alive.load(Ordering::SeqCst) >= MOST {
            continue;
        }
        let rules = rules.for_agent(peer.pid.as_raw_nonzero().get().unsigned_abs());
        alive.fetch_add(1, Ordering::SeqCst);
        let its_own = alive.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            answer_one_agent(&Channel::of(connection), &rules);
            its_own.fetch_sub(1, Ordering::SeqCst);
        });
        if thread.is_err() {
            alive.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// [`answer_all`]. What the agent had stopped goes on behind its last connection, children first, each if it is the process
/// that was stopped.
fn answer_one_agent(channel: &Channel, rules: &Rules) {
    STOPS.begin(rules.agent_pid);
    answer_all(channel, rules);
    hung_up(rules);
}

fn hung_up(rules: &Rules) {
    STOPS.end(rules.agent_pid, |process| {
        let _gone = process::go_on(process, rules);
    });
}

/// Answers until the other side hangs up, or sends a message that is not understood.
fn answer_all(channel: &Channel, rules: &Rules) {
    while let Ok(Some(received)) = channel.receive() {
        let Ok((number, request)) = Request::decode(&received.bytes) else {
            let _gone = channel.send(&Answer::Refused(Refusal::Malformed).encode(0), None);
            return;
        };
        let (answer, descriptor) = perform_with(&request, received.descriptor, rules);
        if let Answer::Refused(why) = &answer {
            say(&request, *why);
        }
        let descriptor = descriptor.as_ref().map(std::os::fd::AsFd::as_fd);
        if channel.send(&answer.encode(number), descriptor).is_err() {
            return;
        }
    }
}

/// A refusal is an error of the agent's or an attack: it is logged, once a second at most.
fn say(request: &Request, why: Refusal) {
    static SAID: Mutex<Option<Instant>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.is_none_or(|said| said.elapsed() >= Duration::from_secs(1)) {
        *said = Some(Instant::now());
        tracing::warn!(?request, "refused: {why}");
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::*;
    use crate::process::start_ticks;
    use crate::request::{Owner, Process};

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        let (_, rest) = stat.rsplit_once(") ").expect("a state");
        rest.chars().next().expect("a letter")
    }

    fn until(what: impl Fn() -> bool) {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed().as_secs() < 20, "it never comes");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_vanished_agent_had_stopped_goes_on_and_nothing_else_does() {
        let start = || {
            std::process::Command::new("sleep")
                .arg("600")
                .spawn()
                .expect("it starts")
        };
        let mut children = [start(), start()];
        let rules = Rules::of_oneself(std::path::Path::new("/nowhere"));
        let stop = |pid| {
            let process = Process {
                pid,
                start_ticks: start_ticks(pid).expect("it lives"),
                owner: Owner::User(rustix::process::getuid().as_raw()),
            };
            process::signal(&process, Signal::STOP, &rules).expect("stopped");
            process
        };
        let by_agent = stop(children[0].id());
        let by_user = stop(children[1].id());
        // The agent let this one go on, and its user has stopped it since.
        let sent: Result<(), ()> = STOPS.send(rules.agent_pid, &by_user, Signal::CONT, |_| Ok(()));
        assert!(sent.is_ok());
        until(|| state(by_agent.pid) == 'T' && state(by_user.pid) == 'T');
        hung_up(&rules);
        until(|| state(by_agent.pid) != 'T');
        assert_eq!(state(by_user.pid), 'T');
        for child in &mut children {
            child.kill().expect("ours");
            child.wait().expect("reaped");
        }
    }
}
