//! The trace for Perfetto and chrome://tracing: a list of events in JSON, as the Trace Event Format has it.
//!
//! Source: "Trace Event Format" (Google, 2016). The list is written event by event, and its closing bracket may be missing:
//! so a file whose writer was killed opens too.
//!
//! A process has a track for each thread that makes calls. Each of its devices is a process of its own there, with a track
//! for each stream, and a counter of the memory in use. An arrow leads from a call to the work that it put into a stream.

use std::collections::BTreeMap;

use divvy_model::Fault;
use divvy_trace::Operation;
use serde_json::{Map, Value, json};

use super::lines::{stream, title};
use super::listener::{Listener, Sink};
use super::story::Told;

/// Process numbers of devices: behind those that Linux gives (22 bits).
const DEVICES: u64 = 1 << 22;

/// Writes the trace.
pub struct Chrome {
    sink: Sink,
    is_begun: bool,
    arrows: u64,
    /// By process and device.
    devices: BTreeMap<(u32, u32), Tracks>,
}

/// The tracks of a device: a stream has one, and more where its graphs do several things at once.
#[derive(Default)]
struct Tracks {
    /// By context and stream: each track, and when its last work ended.
    streams: BTreeMap<(u64, u64), Vec<(u64, u64)>>,
    /// Contexts in the order in which they were seen.
    contexts: Vec<u64>,
    count: u64,
}

impl Chrome {
    /// To there.
    pub fn new(mut sink: Sink) -> Self {
        sink.write("[");
        Self {
            sink,
            is_begun: false,
            arrows: 0,
            devices: BTreeMap::new(),
        }
    }

    fn event(&mut self, event: &Value) {
        let comma = if self.is_begun { ",\n" } else { "\n" };
        self.is_begun = true;
        self.sink.write(&format!("{comma}{event}"));
    }

    /// A name of a process or thread.
    fn name(&mut self, kind: &str, pid: u64, tid: u64, name: &str) {
        self.event(&json!({
            "ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": { "name": name },
        }));
    }

    fn operation(&mut self, pid: u32, operation: &Operation) {
        let device = device(pid, operation.device);
        let tracks = self.devices.entry((pid, operation.device)).or_default();
        let (track, is_new) = tracks.track(operation);
        if is_new {
            let stream = match operation.handle {
                0 => "default stream".to_owned(),
                _ => format!("stream {}", stream(operation)),
            };
            let name = match tracks.context(operation.context) {
                1 => stream,
                context => format!("{stream} of context {context}"),
            };
            self.name("thread_name", device, track, &name);
        }
        self.arrows += 1;
        let mut arguments = json!({
            "call": operation.call, "stream": stream(operation),
            "device_us": micros(operation.end - operation.begin), "processor_us": micros(operation.host_ns),
        });
        let (name, kind) = match &operation.kernel {
            Some(kernel) => {
                arguments["grid"] = json!(kernel.grid);
                arguments["block"] = json!(kernel.block);
                arguments["shared_bytes"] = json!(kernel.shared);
                arguments["cooperative"] = json!(kernel.cooperative);
                arguments["arguments"] = json!(kernel.arguments);
                (kernel.name.clone(), "kernel")
            }
            None => (title(operation), "work"),
        };
        if operation.failed {
            arguments["failed"] = json!(true);
        }
        self.event(&json!({
            "ph": "X", "cat": kind, "name": name, "pid": device, "tid": track, "ts": micros(operation.begin),
            "dur": micros(operation.end - operation.begin), "args": arguments,
        }));
        let arrow = |phase: &str, pid: u64, tid: u64, at: u64| {
            json!({
                "ph": phase, "cat": "launch", "name": "launch", "id": self.arrows, "pid": pid, "tid": tid,
                "ts": micros(at), "bp": "e",
            })
        };
        let from = arrow("s", u64::from(pid), u64::from(operation.tid), operation.called);
        let to = arrow("f", device, track, operation.begin);
        self.event(&from);
        self.event(&to);
    }
}

impl Tracks {
    /// A context's number, from 1.
    fn context(&mut self, id: u64) -> usize {
        let known = self.contexts.iter().position(|known| *known == id);
        known.unwrap_or_else(|| {
            self.contexts.push(id);
            self.contexts.len() - 1
        }) + 1
    }

    /// The track for work of a stream, and whether it is a new one. Work comes in the order of its ends, so it goes behind
    /// the last of a track that ended before it began.
    fn track(&mut self, operation: &Operation) -> (u64, bool) {
        let of_stream = self
            .streams
            .entry((operation.context, operation.stream))
            .or_default();
        if let Some((track, end)) = of_stream.iter_mut().find(|(_, end)| *end <= operation.begin) {
            *end = operation.end;
            return (*track, false);
        }
        self.count += 1;
        of_stream.push((self.count, operation.end));
        (self.count, true)
    }
}

impl Listener for Chrome {
    fn hear(&mut self, told: &Told) {
        match told {
            Told::Process { pid, program } => {
                self.name("process_name", u64::from(*pid), 0, program);
            }
            Told::Thread { pid, tid, name } => {
                self.name("thread_name", u64::from(*pid), u64::from(*tid), name);
            }
            Told::Device { pid, ordinal, name } => {
                let name = format!("{name}, device {ordinal} of process {pid}");
                self.name("process_name", device(*pid, *ordinal), 0, &name);
            }
            Told::Call { pid, call, .. } => {
                let mut arguments: Map<String, Value> = call
                    .arguments
                    .iter()
                    .map(|(name, value)| (name.clone().into_owned(), json!(value)))
                    .collect();
                if !call.result.is_empty() {
                    arguments.insert("result".into(), json!(call.result));
                }
                let kind = if call.name.contains("cuda") { "runtime" } else { "driver" };
                self.event(&json!({
                    "ph": "X", "cat": kind, "name": call.name, "pid": pid, "tid": call.tid, "ts": micros(call.begin),
                    "dur": micros(call.end - call.begin), "args": arguments,
                }));
            }
            Told::Unfinished {
                pid,
                tid,
                name,
                begin,
                end,
            } => self.event(&json!({
                "ph": "X", "cat": "unfinished", "name": name, "pid": pid, "tid": tid, "ts": micros(*begin),
                "dur": micros(end.saturating_sub(*begin)), "args": { "unfinished": true },
            })),
            Told::Operation { pid, operation } => self.operation(*pid, operation),
            Told::Memory {
                pid,
                device: ordinal,
                at,
                bytes,
            } => self.event(&json!({
                "ph": "C", "name": "memory in use", "pid": device(*pid, *ordinal), "tid": 0, "ts": micros(*at),
                "args": { "bytes": bytes },
            })),
        }
    }

    fn flush(&mut self) {
        self.sink.flush();
    }

    fn end(mut self: Box<Self>) -> Result<(), Fault> {
        self.sink.write("\n]\n");
        self.sink.end()
    }
}

/// The number of a device as a process.
fn device(pid: u32, ordinal: u32) -> u64 {
    u64::from(pid) + DEVICES * (u64::from(ordinal) + 1)
}

/// Microseconds, to the nanosecond.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::operation;
    use super::*;
    use std::path::Path;

    /// What the format requires of each kind of event.
    fn required(event: &Value) -> &'static [&'static str] {
        match event["ph"].as_str().unwrap_or_default() {
            "X" => &["name", "cat", "pid", "tid", "ts", "dur"],
            "s" | "f" => &["name", "cat", "id", "pid", "tid", "ts"],
            "C" => &["name", "pid", "ts", "args"],
            "M" => &["name", "pid", "tid", "args"],
            other => panic!("{other}: {event}"),
        }
    }

    fn written(tell: impl FnOnce(&mut Chrome)) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let mut chrome = Box::new(Chrome::new(Sink::file(Path::new(&path)).expect("a file")));
        tell(&mut chrome);
        chrome.end().expect("written");
        std::fs::read_to_string(path).expect("read")
    }

    #[test]
    fn events_have_the_fields_that_the_format_requires() {
        let text = written(|chrome| {
            let pid = 7;
            for told in [
                Told::Process {
                    pid,
                    program: "a \"program\"".into(),
                },
                Told::Thread {
                    pid,
                    tid: 8,
                    name: "worker".into(),
                },
                Told::Device {
                    pid,
                    ordinal: 0,
                    name: "NVIDIA H100".into(),
                },
                Told::Call {
                    pid,
                    call: divvy_trace::Call {
                        tid: 8,
                        begin: 1_000,
                        end: 3_500,
                        name: "cuLaunchKernel".into(),
                        result: "CUDA_SUCCESS".into(),
                        arguments: vec![("f".into(), "0x10".into())],
                        ..Default::default()
                    },
                    inside: 0,
                },
                Told::Operation {
                    pid,
                    operation: operation(),
                },
                Told::Memory {
                    pid,
                    device: 0,
                    at: 5,
                    bytes: 4096,
                },
                Told::Unfinished {
                    pid,
                    tid: 8,
                    name: "cuCtxSynchronize".into(),
                    begin: 10,
                    end: 20,
                },
            ] {
                chrome.hear(&told);
            }
        });
        let events: Vec<Value> = serde_json::from_str(&text).expect("a list");
        for event in &events {
            for field in required(event) {
                assert!(!event[field].is_null(), "{field} of {event}");
            }
        }
        let of = |phase: &str| {
            events
                .iter()
                .filter(|event| event["ph"] == phase)
                .collect::<Vec<_>>()
        };
        let (from, to) = (of("s")[0], of("f")[0]);
        let (call, kernel) = (of("X")[0], of("X")[1]);
        assert_eq!((&from["id"], &from["tid"]), (&to["id"], &call["tid"]));
        assert_eq!(
            (&to["tid"], &to["pid"], &to["ts"]),
            (&kernel["tid"], &kernel["pid"], &kernel["ts"])
        );
        assert_eq!((&call["ts"], &call["dur"]), (&json!(1.0), &json!(2.5)));
        assert_eq!(kernel["args"]["grid"], json!([4, 1, 1]));
        assert_eq!(kernel["args"]["arguments"], json!(["0x00000400", "0x7f00*"]));
        // A file whose end is missing is a list without its bracket.
        let cut = &text[..text.rfind("\n]").expect("an end")];
        assert!(serde_json::from_str::<Vec<Value>>(&format!("{cut}]")).is_ok());
    }

    #[test]
    fn work_at_one_time_has_tracks_of_its_own() {
        let mut tracks = Tracks::default();
        let mut track = |stream, begin, end| {
            let (stream, begin, end) = (stream, begin, end);
            tracks.track(&Operation {
                stream,
                begin,
                end,
                ..Operation::default()
            })
        };
        assert_eq!(track(1, 0, 10), (1, true));
        assert_eq!(track(1, 10, 20), (1, false));
        assert_eq!(track(1, 5, 25), (2, true), "beside the second");
        assert_eq!(track(2, 0, 30), (3, true));
        assert_eq!(track(1, 26, 31), (1, false));
    }
}
