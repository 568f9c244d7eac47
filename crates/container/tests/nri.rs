//! A plugin's conversation with a runtime that says what a test wants.

use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use divvy_container::cdi::Mount;
use divvy_container::nri::frame::{Message, PLUGIN, REQUEST, RESPONSE, RUNTIME, Trunk};
use divvy_container::nri::message::{Adjustment, Container, Pod, Synchronize};
use divvy_container::nri::wire::{Value, Writer, fields};
use divvy_container::nri::{End, Plugin, serve};
use divvy_container::oci::Node;
use divvy_model::{Code, Fault};

/// A plugin that notes what it is asked.
struct Noting {
    notes: Mutex<Vec<String>>,
    /// Creation of a container called `slow` waits for this.
    gate: Mutex<Receiver<()>>,
}

impl Noting {
    fn new() -> (Self, Sender<()>) {
        let (open, gate) = channel();
        let plugin = Self {
            notes: Mutex::default(),
            gate: Mutex::new(gate),
        };
        (plugin, open)
    }

    fn note(&self, text: String) {
        self.notes.lock().expect("whole").push(text);
    }

    fn notes(&self) -> Vec<String> {
        self.notes.lock().expect("whole").clone()
    }
}

impl Plugin for Noting {
    fn synchronize(&self, runtime: &str, all: Synchronize) {
        self.note(format!(
            "{runtime}: {} pods, {} containers",
            all.pods.len(),
            all.containers.len()
        ));
    }

    fn create(&self, pod: &Pod, container: &Container) -> Result<Option<Adjustment>, Fault> {
        self.note(format!(
            "create {}/{} {:?}",
            pod.name, container.name, pod.annotations
        ));
        match container.name.as_str() {
            "bad" => Err(Fault::new(Code::Quantity, "`much` is no size")),
            "slow" => {
                self.gate.lock().expect("whole").recv().expect("opened");
                Ok(None)
            }
            "plain" => Ok(None),
            _ => Ok(Some(Adjustment {
                environment: vec!["A=b=c".into()],
                mounts: vec![Mount {
                    host_path: "/from".into(),
                    container_path: "/to".into(),
                    options: vec!["ro".into(), "bind".into()],
                    kind: String::new(),
                }],
                nodes: vec![Node {
                    path: "/dev/x".into(),
                    kind: "c",
                    major: 195,
                    minor: 0,
                    mode: 0o666,
                    uid: 0,
                    gid: 44,
                    access: "rw".into(),
                }],
            })),
        }
    }

    fn start(&self, container: &Container) -> Result<(), Fault> {
        self.note(format!("start {} {}", container.id, container.pid));
        match container.pid {
            13 => Err(Fault::new(Code::NotEnforceable, "it is static")),
            _ => Ok(()),
        }
    }

    fn stopped(&self, container: &str) {
        self.note(format!("stopped {container}"));
    }

    fn pod_stopped(&self, pod: &str) {
        self.note(format!("pod stopped {pod}"));
    }

    fn words(&self, fault: &Fault) -> String {
        format!("divvy[{}]: {fault}", fault.code)
    }
}

/// The runtime's end.
struct Runtime {
    trunk: Trunk<UnixStream>,
    stream: u32,
}

const SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

impl Runtime {
    fn new(socket: UnixStream) -> Self {
        Self {
            trunk: Trunk::new(socket),
            stream: 1,
        }
    }

    /// Takes the registration.
    fn registers(&mut self, answer: Writer) -> (String, String) {
        let asked = self.trunk.receive().expect("read").expect("a registration");
        assert_eq!(
            (asked.connection, asked.kind, asked.stream % 2),
            (RUNTIME, REQUEST, 1)
        );
        assert_eq!(text(&asked.data, 1), "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(text(&asked.data, 2), "RegisterPlugin");
        let request = inner(&asked.data, 3);
        self.trunk
            .send(&Message {
                connection: RUNTIME,
                stream: asked.stream,
                kind: RESPONSE,
                flags: 0,
                data: answer.into_bytes(),
            })
            .expect("sent");
        (text(&request, 1), text(&request, 2))
    }

    fn asks(&mut self, service: &str, method: &str, payload: Writer) -> Result<Vec<u8>, (u64, String)> {
        self.stream += 2;
        let call = Writer::default()
            .text(1, service)
            .text(2, method)
            .bytes(3, &payload.into_bytes());
        self.trunk
            .send(&Message {
                connection: PLUGIN,
                stream: self.stream,
                kind: REQUEST,
                flags: 0,
                data: call.into_bytes(),
            })
            .expect("sent");
        let answer = self.trunk.receive().expect("read").expect("an answer");
        assert_eq!(
            (answer.connection, answer.kind, answer.stream),
            (PLUGIN, RESPONSE, self.stream)
        );
        match find(&answer.data, 1) {
            None => Ok(inner(&answer.data, 2)),
            Some(status) => {
                let status = status.bytes().expect("a message");
                let code = find(status, 1).expect("a code").number().expect("a number");
                Err((code, text(status, 2)))
            }
        }
    }

    fn ask(&mut self, method: &str, payload: Writer) -> Result<Vec<u8>, (u64, String)> {
        self.asks(SERVICE, method, payload)
    }
}

fn find(message: &[u8], field: u32) -> Option<Value<'_>> {
    let mut all = fields(message).map(|field| field.expect("well formed"));
    all.find(|(number, _)| *number == field).map(|(_, value)| value)
}

fn inner(message: &[u8], field: u32) -> Vec<u8> {
    let found = find(message, field).map(|value| value.bytes().expect("bytes").to_vec());
    found.unwrap_or_default()
}

fn text(message: &[u8], field: u32) -> String {
    String::from_utf8(inner(message, field)).expect("a text")
}

fn pod(name: &str) -> Writer {
    let annotation = Writer::default().text(1, "divvy.dev/memory").text(2, "1GiB");
    Writer::default()
        .text(1, "p1")
        .text(2, name)
        .message(6, annotation)
}

fn container(name: &str, pid: u64) -> Writer {
    let id = format!("c-{name}");
    Writer::default()
        .text(1, &id)
        .text(2, "p1")
        .text(3, name)
        .number(12, pid)
}

fn of(name: &str) -> Writer {
    Writer::default()
        .message(1, pod("train"))
        .message(2, container(name, 0))
}

fn event(number: u64, pid: u64) -> Writer {
    Writer::default()
        .number(1, number)
        .message(2, pod("train"))
        .message(3, container("main", pid))
}

/// Talks as `with` does to a plugin that is served on a thread of its own; how that ended, and what was noted.
fn conversation(with: impl FnOnce(&mut Runtime, &Noting, Sender<()>)) -> (Result<End, Fault>, Vec<String>) {
    let (plugin, open) = Noting::new();
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let ended = thread::scope(|scope| {
        let plugin = &plugin;
        let served = scope.spawn(move || serve(scope, ours, "10", "divvy", plugin));
        let mut runtime = Runtime::new(theirs);
        with(&mut runtime, plugin, open);
        drop(runtime);
        served.join().expect("no panic")
    });
    (ended, plugin.notes())
}

#[test]
fn a_runtime_takes_it_on_and_asks_it() {
    let (ended, notes) = conversation(|runtime, _, _| {
        assert_eq!(
            runtime.registers(Writer::default()),
            ("divvy".into(), "10".into())
        );
        let configure = Writer::default()
            .text(2, "containerd")
            .text(3, "1.7")
            .number(5, 60_000);
        let answer = runtime.ask("Configure", configure).expect("configured");
        // Of the events 2, 3, 4, 6, 10 and 11.
        assert_eq!(find(&answer, 2), Some(Value::Number(0b110_0010_1110)));
        // In two parts.
        let part = || {
            Writer::default()
                .message(1, pod("train"))
                .message(2, container("old", 7))
        };
        let more = runtime.ask("Synchronize", part().number(3, 1)).expect("taken");
        assert_eq!(find(&more, 2), Some(Value::Number(1)));
        assert_eq!(runtime.ask("Synchronize", part()).expect("taken"), b"");

        let answer = runtime.ask("CreateContainer", of("main")).expect("made");
        let adjust = inner(&answer, 1);
        let mount = inner(&adjust, 3);
        assert_eq!(
            [1, 2, 3, 4].map(|field| text(&mount, field)),
            ["/to", "bind", "/from", "ro"]
        );
        let variable = inner(&adjust, 4);
        assert_eq!(
            (text(&variable, 1), text(&variable, 2)),
            ("A".into(), "b=c".into())
        );
        let node = inner(&inner(&adjust, 6), 1);
        assert_eq!((text(&node, 1), text(&node, 2)), ("/dev/x".into(), "c".into()));
        assert_eq!((find(&node, 3), find(&node, 4)), (Some(Value::Number(195)), None));
        assert_eq!(find(&inner(&node, 7), 1), Some(Value::Number(44)));
        // root's, which is something else than no user's.
        assert_eq!(find(&node, 6), Some(Value::Bytes(b"")));

        let plain = runtime.ask("CreateContainer", of("plain")).expect("made");
        assert_eq!(inner(&plain, 1), b"");
        let refused = runtime.ask("CreateContainer", of("bad")).expect_err("refused");
        assert_eq!(refused, (9, "divvy[D0002]: `much` is no size".into()));
        runtime.ask("StateChange", event(6, 12)).expect("may");
        assert_eq!(runtime.ask("StateChange", event(6, 13)).expect_err("static").0, 9);
        for number in [10, 11, 2, 3, 1, 99] {
            runtime.ask("StateChange", event(number, 0)).expect("told");
        }
        runtime.ask("StopContainer", of("main")).expect("told");
        runtime.ask("Shutdown", Writer::default()).expect("told");
    });
    assert_eq!(ended, Ok(End::Shutdown));
    let known = r#"{"divvy.dev/memory": "1GiB"}"#;
    let expected = [
        "containerd: 2 pods, 2 containers".to_owned(),
        format!("create train/main {known}"),
        format!("create train/plain {known}"),
        format!("create train/bad {known}"),
        "start c-main 12".into(),
        "start c-main 13".into(),
        "stopped c-main".into(),
        "stopped c-main".into(),
        "pod stopped p1".into(),
        "pod stopped p1".into(),
        "stopped c-main".into(),
    ];
    assert_eq!(notes, expected);
}

/// A runtime drops a plugin that is late, and runs the container without it: so it must not be late.
#[test]
fn what_takes_too_long_is_refused_in_time_and_taken_back() {
    let (ended, notes) = conversation(|runtime, plugin, open| {
        runtime.registers(Writer::default());
        runtime
            .ask("Configure", Writer::default().number(5, 40))
            .expect("configured");
        let (code, said) = runtime.ask("CreateContainer", of("slow")).expect_err("late");
        assert_eq!(code, 9);
        assert!(said.contains("D0049"), "{said}");
        // It has not come to an end, and the next one is served.
        assert_eq!(plugin.notes().len(), 1);
        runtime.ask("StateChange", event(1, 0)).expect("told");
        open.send(()).expect("waited for");
    });
    assert_eq!(ended, Ok(End::Closed));
    assert_eq!(
        notes.last().map(String::as_str),
        Some("stopped c-slow"),
        "{notes:?}"
    );
}

#[test]
fn what_no_runtime_says_is_refused_and_does_no_harm() {
    let (ended, notes) = conversation(|runtime, _, _| {
        runtime.registers(Writer::default());
        assert_eq!(
            runtime
                .asks("another.Service", "Configure", Writer::default())
                .expect_err("none")
                .0,
            12
        );
        assert_eq!(runtime.ask("Fly", Writer::default()).expect_err("none").0, 12);
        let torn = Writer::default().item(1, &[0x0a, 0x09]);
        assert_eq!(runtime.ask("CreateContainer", torn).expect_err("torn").0, 3);
    });
    assert_eq!((ended, notes.len()), (Ok(End::Closed), 0));
}

#[test]
fn a_runtime_that_refuses_it_is_heard() {
    let (ended, _) = conversation(|runtime, _, _| {
        let status = Writer::default().number(1, 2).text(2, "no such index");
        runtime.registers(Writer::default().message(1, status));
        // It closes what it has no use for.
        assert!(runtime.trunk.receive().expect("closed").is_none());
    });
    let fault = ended.expect_err("refused");
    assert_eq!(
        (fault.code, fault.causes[0].as_str()),
        (Code::Nri, "no such index")
    );
}
