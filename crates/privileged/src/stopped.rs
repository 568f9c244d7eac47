//! The processes that this helper has stopped for its agents. They go on where the agent hangs up without having said so:
//! an agent that is killed leaves none stopped.
//!
//! A signal and its note, and an agent's end and what goes on then, exclude each other. Otherwise the end of one agent's
//! connections could let go on what its successor has just stopped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;

use crate::request::Process;

/// As many are remembered. An agent that stops more has the next agent let the oldest go on.
const MOST: usize = 16 << 10;

/// Those of this process.
pub(crate) static STOPS: Stops = Stops::new();

/// The connections of agents, and what each agent has stopped.
#[derive(Debug)]
pub(crate) struct Stops(Mutex<Noted>);

#[derive(Debug)]
struct Noted {
    /// The agent of each connection, by process id.
    connections: Vec<u32>,
    /// The agent that stopped it, and the process; oldest first.
    stopped: Vec<(u32, Process)>,
}

impl Stops {
    pub const fn new() -> Self {
        Self(Mutex::new(Noted {
            connections: Vec::new(),
            stopped: Vec::new(),
        }))
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of this agent begins.
    pub fn begin(&self, agent: u32) {
        self.noted().connections.push(agent);
    }

    /// A connection of this agent has ended. With its last one, `release` is called for each process that this agent has
    /// stopped, newest first, before any other signal is sent.
    pub fn end(&self, agent: u32, mut release: impl FnMut(&Process)) {
        let mut noted = self.noted();
        if let Some(at) = noted.connections.iter().position(|other| *other == agent) {
            noted.connections.swap_remove(at);
        }
        if noted.connections.contains(&agent) {
            return;
        }
        let left: Vec<_> = noted.stopped.extract_if(.., |(of, _)| *of == agent).collect();
        if !left.is_empty() {
            tracing::warn!(
                count = left.len(),
                "processes that the agent had stopped go on: it has hung up"
            );
        }
        left.iter().rev().for_each(|(_, process)| release(process));
    }

    /// Sends a signal for an agent by `send`, and notes it where that succeeds. `send` is told whether the process is to go
    /// on and is noted as stopped: then it goes on whatever user it has become since.
    pub fn send<T, E>(
        &self,
        agent: u32,
        process: &Process,
        signal: Signal,
        send: impl FnOnce(bool) -> Result<T, E>,
    ) -> Result<T, E> {
        if ![Signal::STOP, Signal::CONT, Signal::KILL].contains(&signal) {
            return send(false);
        }
        let mut noted = self.noted();
        let is_it = |other: &Process| (other.pid, other.start_ticks) == (process.pid, process.start_ticks);
        let is_stopped = noted.stopped.iter().any(|(_, other)| is_it(other));
        let sent = send(signal == Signal::CONT && is_stopped)?;
        noted.stopped.retain(|(_, other)| !is_it(other));
        if signal == Signal::STOP {
            if noted.stopped.len() == MOST {
                noted.stopped.remove(0);
            }
            noted.stopped.push((agent, *process));
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Owner;

    fn process(pid: u32) -> Process {
        Process {
            pid,
            start_ticks: 7,
            owner: Owner::User(1000),
        }
    }

    fn send(stops: &Stops, agent: u32, pid: u32, signal: Signal) {
        let sent: Result<(), ()> = stops.send(agent, &process(pid), signal, |_| Ok(()));
        assert!(sent.is_ok());
    }

    fn released(stops: &Stops, agent: u32) -> Vec<u32> {
        let mut pids = Vec::new();
        stops.end(agent, |process| pids.push(process.pid));
        pids
    }

    #[test]
    fn what_the_next_agent_stops_stays_stopped_at_the_end_of_the_one_before() {
        let stops = Stops::new();
        stops.begin(1);
        stops.begin(1);
        for pid in [10, 11, 12] {
            send(&stops, 1, pid, Signal::STOP);
        }
        assert_eq!(released(&stops, 1), [0; 0], "it has another connection");
        // Its successor comes before its last connection is known to have ended.
        stops.begin(2);
        send(&stops, 2, 20, Signal::STOP);
        send(&stops, 2, 11, Signal::CONT);
        assert_eq!(released(&stops, 1), [12, 10], "children first, and its own");
        assert_eq!(released(&stops, 2), [20]);
        assert_eq!(released(&stops, 2), [0; 0]);
    }

    #[test]
    fn only_what_is_noted_as_stopped_goes_on_as_root_says() {
        let stops = Stops::new();
        stops.begin(1);
        let is_noted = |pid, signal| {
            let mut noted = None;
            let sent: Result<(), ()> = stops.send(1, &process(pid), signal, |is_stopped| {
                noted = Some(is_stopped);
                Ok(())
            });
            assert!(sent.is_ok());
            noted.expect("sent")
        };
        assert!(!is_noted(10, Signal::CONT), "never stopped");
        assert!(!is_noted(10, Signal::STOP));
        assert!(!is_noted(10, Signal::STOP), "it is to stop");
        assert!(!is_noted(11, Signal::CONT), "another process");
        assert!(is_noted(10, Signal::CONT));
        assert!(!is_noted(10, Signal::CONT), "it went on already");
    }

    #[test]
    fn no_signal_is_sent_between_an_agents_end_and_what_goes_on_then() {
        let stops = Stops::new();
        stops.begin(1);
        send(&stops, 1, 10, Signal::STOP);
        stops.end(1, |_| assert!(stops.0.try_lock().is_err(), "others wait"));
        let signal = |_| -> Result<(), ()> {
            assert!(stops.0.try_lock().is_err(), "the note waits for the signal");
            Err(())
        };
        assert!(stops.send(1, &process(10), Signal::STOP, signal).is_err());
        assert_eq!(released(&stops, 1), [0; 0], "what was not sent is not noted");
    }
}
