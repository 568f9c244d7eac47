//! Events in order: which call is inside which, which never ended, and what is wanted of them.

use std::collections::BTreeMap;

use divvy_trace::{Call, Event, Heard, Operation};

use super::choice::Choice;

/// What listeners are told. Times are nanoseconds from the begin of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// A process makes CUDA calls.
    Process { pid: u32, program: String },
    /// A thread of it makes calls.
    Thread { pid: u32, tid: u32, name: String },
    /// It opened a device.
    Device { pid: u32, ordinal: u32, name: String },
    /// A call has ended.
    Call { pid: u32, call: Call, inside: usize },
    /// A call had not ended when its process did.
    Unfinished {
        pid: u32,
        tid: u32,
        name: String,
        begin: u64,
        end: u64,
    },
    /// Work of a stream has ended.
    Operation { pid: u32, operation: Operation },
    /// The memory of a device that a process has in use, in bytes.
    Memory {
        pid: u32,
        device: u32,
        at: u64,
        bytes: u64,
    },
}

/// A call that has begun.
struct Open {
    name: String,
    begin: u64,
}

/// Tells listeners what is wanted of what is heard.
pub struct Teller {
    choice: Choice,
    /// The begin of the trace.
    zero: u64,
    last: u64,
    /// Programs by process.
    processes: BTreeMap<u32, String>,
    /// By process and thread: the calls that it is in, the outer one first.
    open: BTreeMap<(u32, u32), Vec<Open>>,
    /// Names of threads that have made no call yet.
    names: BTreeMap<(u32, u32), String>,
}

impl Teller {
    /// The trace begins now.
    pub fn new(choice: Choice) -> Self {
        Self {
            choice,
            zero: divvy_trace::now_ns(),
            last: 0,
            processes: BTreeMap::new(),
            open: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    fn since(&self, at: u64) -> u64 {
        at.saturating_sub(self.zero)
    }

    /// Tells of one event. Those of all processes come in the order of their times.
    pub fn tell(&mut self, heard: Heard, to: &mut dyn FnMut(Told)) {
        let Heard { pid, event } = heard;
        self.last = self.last.max(self.since(event.at()));
        match event {
            Event::Process { program, .. } => {
                match self.processes.insert(pid, program.clone()) {
                    // Another library of the process.
                    Some(known) if known == program => return,
                    // Another program in it: calls of the former one do not end.
                    Some(_) => self.give_up(|process| process == pid, to),
                    None => {}
                }
                to(Told::Process { pid, program });
            }
            Event::Thread { tid, name, .. } => {
                self.names.insert((pid, tid), name);
            }
            Event::Device { ordinal, name, .. } => to(Told::Device { pid, ordinal, name }),
            Event::Enter { at, tid, name } => {
                if let Some(name) = self.names.remove(&(pid, tid)) {
                    to(Told::Thread { pid, tid, name });
                }
                let begin = self.since(at);
                self.open
                    .entry((pid, tid))
                    .or_default()
                    .push(Open { name, begin });
            }
            Event::Call(mut call) => {
                let open = self.open.entry((pid, call.tid)).or_default();
                // What the thread left without an end, by longjmp or an exception, goes too.
                if let Some(at) = open.iter().rposition(|open| open.name == call.name) {
                    open.truncate(at);
                }
                let inside = open.len();
                (call.begin, call.end) = (self.since(call.begin), self.since(call.end));
                if self.choice.takes_call(&call, inside > 0) {
                    to(Told::Call { pid, call, inside });
                }
            }
            Event::Operation(mut operation) => {
                operation.called = self.since(operation.called);
                (operation.begin, operation.end) = (self.since(operation.begin), self.since(operation.end));
                if self.choice.takes_operation(&operation) {
                    to(Told::Operation { pid, operation });
                }
            }
            Event::Memory { at, device, bytes } => to(Told::Memory {
                pid,
                device,
                at: self.since(at),
                bytes,
            }),
        }
    }

    /// The program has ended: what is open never ended.
    pub fn end(&mut self, to: &mut dyn FnMut(Told)) {
        self.give_up(|_| true, to);
    }

    fn give_up(&mut self, whose: impl Fn(u32) -> bool, to: &mut dyn FnMut(Told)) {
        let end = self.last;
        for ((pid, tid), open) in &mut self.open {
            if !whose(*pid) {
                continue;
            }
            for (inside, Open { name, begin }) in std::mem::take(open).into_iter().enumerate() {
                let call = Call {
                    name: name.clone().into(),
                    ..Call::default()
                };
                if self.choice.takes_call(&call, inside > 0) {
                    let (pid, tid) = (*pid, *tid);
                    to(Told::Unfinished {
                        pid,
                        tid,
                        name,
                        begin,
                        end,
                    });
                }
            }
        }
    }
}
