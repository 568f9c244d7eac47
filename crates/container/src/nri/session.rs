//! A plugin's conversation with the runtime, from its registration on.

use std::io::{self, Read, Write};
use std::sync::mpsc::sync_channel;
use std::thread::Scope;
use std::time::Duration;

use divvy_model::{Code, Fault};

use super::frame::{MOST, Message, PLUGIN, REQUEST, RESPONSE, RUNTIME, Trunk};
use super::message::{Adjustment, Configure, Container, Happening, Pod, Synchronize};
use super::wire::{Malformed, Value, Writer, fields};

/// What a plugin does. Calls come one after the other, except those that took too long and go on meanwhile.
pub trait Plugin: Sync {
    /// The runtime has registered us. `all` has the pods and containers that there are now.
    fn synchronize(&self, runtime: &str, all: Synchronize);

    /// A container is being made; what is to be changed in it, if anything.
    ///
    /// # Errors
    /// Why the container must not be. The runtime shows the sentence.
    fn create(&self, pod: &Pod, container: &Container) -> Result<Option<Adjustment>, Fault>;

    /// A container's first process stands inside its root, and waits.
    ///
    /// # Errors
    /// Why it must not run.
    fn start(&self, container: &Container) -> Result<(), Fault>;

    /// A container has ended, is gone, or was not made in time.
    fn stopped(&self, container: &str);

    /// A pod has ended or is gone.
    fn pod_stopped(&self, pod: &str);

    /// A refusal in words, for the container's status.
    fn words(&self, fault: &Fault) -> String;
}

/// Events by their numbers. A mask has bit n-1 for event n.
mod event {
    pub const STOP_POD: u32 = 2;
    pub const REMOVE_POD: u32 = 3;
    pub const CREATE: u32 = 4;
    pub const START: u32 = 6;
    pub const STOP: u32 = 10;
    pub const REMOVE: u32 = 11;
    pub const ALL: [u32; 6] = [STOP_POD, REMOVE_POD, CREATE, START, STOP, REMOVE];
}

/// gRPC's codes of what went wrong.
mod status {
    pub const INVALID_ARGUMENT: u64 = 3;
    pub const FAILED_PRECONDITION: u64 = 9;
    pub const UNIMPLEMENTED: u64 = 12;
}

const OUR_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
const THEIR_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// How long a runtime waits for an answer by default.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// How a conversation ended that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The runtime is gone, or has closed the socket.
    Closed,
    /// It said so before.
    Shutdown,
}

/// Registers as `index` (two digits), `name`, and answers the runtime until it closes the socket. Work that takes
/// longer than the runtime would wait goes on in `scope`: the runtime drops a plugin that is late, and then runs
/// containers without asking it.
///
/// # Errors
/// [`Code::Nri`] where the runtime refuses us, or says what no runtime says; the socket's errors too.
pub fn serve<'scope, P: Plugin>(
    scope: &'scope Scope<'scope, '_>,
    socket: impl Read + Write,
    index: &str,
    name: &str,
    plugin: &'scope P,
) -> Result<End, Fault> {
    let mut session = Session {
        scope,
        plugin,
        trunk: Trunk::new(socket),
        timeout: answer_timeout(REQUEST_TIMEOUT),
        runtime: String::new(),
        known: Synchronize::default(),
        shutdown: false,
    };
    session.register(index, name).map_err(broken)?;
    while let Some(message) = session.trunk.receive().map_err(broken)? {
        session.take(&message)?;
    }
    Ok(match session.shutdown {
        true => End::Shutdown,
        false => End::Closed,
    })
}

fn broken(error: io::Error) -> Fault {
    Fault::new(Code::Nri, "the connection to the container runtime broke").because(&error)
}

/// How long we take at most: a quarter of the time is the way there and back.
fn answer_timeout(timeout: Duration) -> Duration {
    timeout / 4 * 3
}

struct Session<'scope, 'env, S, P> {
    scope: &'scope Scope<'scope, 'env>,
    plugin: &'scope P,
    trunk: Trunk<S>,
    timeout: Duration,
    runtime: String,
    /// What has come of a synchronization in several parts.
    known: Synchronize,
    shutdown: bool,
}

/// An answer, or a status with its sentence.
type Answer = Result<Writer, (u64, String)>;

impl<'scope, S: Read + Write, P: Plugin> Session<'scope, '_, S, P> {
    fn register(&mut self, index: &str, name: &str) -> io::Result<()> {
        let request = Writer::default().text(1, name).text(2, index);
        let call = Writer::default()
            .text(1, THEIR_SERVICE)
            .text(2, "RegisterPlugin")
            .message(3, request);
        self.trunk.send(&Message {
            connection: RUNTIME,
            stream: 1,
            kind: REQUEST,
            flags: 0,
            data: call.into_bytes(),
        })
    }

    fn take(&mut self, message: &Message) -> Result<(), Fault> {
        match (message.connection, message.kind) {
            (RUNTIME, RESPONSE) => registered(&message.data),
            (PLUGIN, REQUEST) => {
                let answer = self.answer(message);
                self.trunk.send(&respond(message.stream, answer)).map_err(broken)
            }
            // Of streams, which NRI has none of.
            _ => Ok(()),
        }
    }

    fn answer(&mut self, message: &Message) -> Answer {
        let no_sense = |malformed: Malformed| (status::INVALID_ARGUMENT, format!("divvy: {malformed}"));
        let request = Request::read(&message.data).map_err(no_sense)?;
        if message.flags != 0 || request.service != OUR_SERVICE {
            return Err((status::UNIMPLEMENTED, "divvy: no such service".into()));
        }
        let bytes = request.payload;
        let happening = |bytes| Happening::of_request(bytes).map_err(no_sense);
        match request.method.as_str() {
            "Configure" => Ok(self.configure(Configure::read(bytes).map_err(no_sense)?)),
            "Synchronize" => Ok(self.synchronize(Synchronize::read(bytes).map_err(no_sense)?)),
            "Shutdown" => {
                self.shutdown = true;
                Ok(Writer::default())
            }
            "CreateContainer" => self.create(happening(bytes)?),
            "StateChange" => {
                let happening = Happening::of_notification(bytes).map_err(no_sense)?;
                self.happened(happening.event, happening)
            }
            // Later versions of NRI have a request for each event.
            "StartContainer" => self.happened(event::START, happening(bytes)?),
            "StopContainer" => self.happened(event::STOP, happening(bytes)?),
            "RemoveContainer" => self.happened(event::REMOVE, happening(bytes)?),
            "StopPodSandbox" => self.happened(event::STOP_POD, happening(bytes)?),
            "RemovePodSandbox" => self.happened(event::REMOVE_POD, happening(bytes)?),
            // An update of what is no concern of ours.
            "UpdateContainer" => Ok(Writer::default()),
            _ => Err((status::UNIMPLEMENTED, "divvy: no such method".into())),
        }
    }

    fn configure(&mut self, configure: Configure) -> Writer {
        self.runtime = configure.runtime;
        self.known = Synchronize::default();
        if configure.request_timeout_ms > 0 {
            self.timeout = answer_timeout(Duration::from_millis(configure.request_timeout_ms));
        }
        let mask = event::ALL.iter().fold(0, |mask, event| mask | 1 << (event - 1));
        Writer::default().number(2, mask)
    }

    fn synchronize(&mut self, part: Synchronize) -> Writer {
        self.known.pods.extend(part.pods);
        self.known.containers.extend(part.containers);
        if !part.more {
            let (all, runtime, plugin) = (std::mem::take(&mut self.known), self.runtime.clone(), self.plugin);
            self.in_time(move || plugin.synchronize(&runtime, all), |()| {});
        }
        Writer::default().number(2, part.more.into())
    }

    fn create(&mut self, happening: Happening) -> Answer {
        let plugin = self.plugin;
        let id = happening.container.id.clone();
        let made = self.in_time(
            move || plugin.create(&happening.pod, &happening.container),
            // The runtime does not wait for it any more: the container was refused.
            move |_| plugin.stopped(&id),
        );
        let late = || {
            Err(
                Fault::new(Code::Nri, "the slice could not be made before the runtime gives up")
                    .hint("raise plugin_request_timeout in the runtime's NRI settings; `divvy doctor` tells whether the agent answers"),
            )
        };
        match made.unwrap_or_else(late) {
            Ok(adjustment) => Ok(adjustment.unwrap_or_default().answer()),
            Err(fault) => Err((status::FAILED_PRECONDITION, self.plugin.words(&fault))),
        }
    }

    fn happened(&mut self, event: u32, happening: Happening) -> Answer {
        let plugin = self.plugin;
        let (container, pod) = (happening.container, happening.pod.id);
        match event {
            event::START => {
                let may = self.in_time(move || plugin.start(&container), |_| {});
                if let Some(Err(fault)) = may {
                    return Err((status::FAILED_PRECONDITION, self.plugin.words(&fault)));
                }
            }
            // Longer work goes on: the runtime need not wait for it.
            event::STOP | event::REMOVE => {
                self.in_time(move || plugin.stopped(&container.id), |()| {});
            }
            event::STOP_POD | event::REMOVE_POD => {
                self.in_time(move || plugin.pod_stopped(&pod), |()| {});
            }
            _ => {}
        }
        Ok(Writer::default())
    }

    /// The work's result, if it is done in time; else `late` gets it.
    fn in_time<T: Send + 'scope>(
        &self,
        work: impl FnOnce() -> T + Send + 'scope,
        late: impl FnOnce(T) + Send + 'scope,
    ) -> Option<T> {
        // Without a place in between: the work is taken, or comes back.
        let (sender, receiver) = sync_channel(0);
        self.scope.spawn(move || {
            if let Err(unheard) = sender.send(work()) {
                late(unheard.0);
            }
        });
        receiver.recv_timeout(self.timeout).ok()
    }
}

/// The runtime's answer to our registration.
fn registered(bytes: &[u8]) -> Result<(), Fault> {
    let refused = |reason: String| {
        Fault::new(Code::Nri, "the container runtime does not take the plugin on").cause(reason)
    };
    for field in fields(bytes) {
        let (number, value) = field.map_err(|malformed| refused(malformed.to_string()))?;
        if number == 1 {
            let reason = status_of(value).map_err(|malformed| refused(malformed.to_string()))?;
            reason.map_or(Ok(()), |reason| Err(refused(reason)))?;
        }
    }
    Ok(())
}

/// Why a call failed, if it did.
fn status_of(value: Value<'_>) -> Result<Option<String>, Malformed> {
    let (mut code, mut message) = (0, String::new());
    for field in fields(value.bytes()?) {
        match field? {
            (1, value) => code = value.short()?,
            (2, value) => message = value.text()?,
            _ => {}
        }
    }
    Ok((code != 0).then_some(message))
}

struct Request<'a> {
    service: String,
    method: String,
    payload: &'a [u8],
}

impl<'a> Request<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut request = Self {
            service: String::new(),
            method: String::new(),
            payload: &[],
        };
        for field in fields(bytes) {
            match field? {
                (1, value) => request.service = value.text()?,
                (2, value) => request.method = value.text()?,
                (3, value) => request.payload = value.bytes()?,
                _ => {}
            }
        }
        Ok(request)
    }
}

fn respond(stream: u32, answer: Answer) -> Message {
    let answer = match answer {
        Ok(payload) => Writer::default().bytes(2, &payload.into_bytes()),
        Err((code, sentence)) => {
            Writer::default().message(1, Writer::default().number(1, code).text(2, &sentence))
        }
    };
    let mut data = answer.into_bytes();
    if data.len() > MOST {
        let sentence = "divvy: the answer is too large";
        let status = Writer::default()
            .number(1, status::FAILED_PRECONDITION)
            .text(2, sentence);
        data = Writer::default().message(1, status).into_bytes();
    }
    Message {
        connection: PLUGIN,
        stream,
        kind: RESPONSE,
        flags: 0,
        data,
    }
}
