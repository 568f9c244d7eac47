//! A server in this process: a thread for each of the program's, and messages through channels.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "each test file uses its own part"
)]

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use divvy_abi::*;
use divvy_remote::server::{Quota, Server};
use divvy_remote::stream::{Frames, StreamTransport};
use divvy_remote::wire::by_hand::IS_DEVICE;
use divvy_remote::wire::{Header, Printed};
use divvy_remote::{Connector, Lost, NotOpened, Transport};
use divvy_ring::{Backing, Region, Shape};
use tempfile::TempDir;

/// Calls an entry point of the client and gives its result.
macro_rules! code {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: a test passes arguments of the kinds the function takes, or those whose refusal it tests.
        unsafe { (divvy_remote::client::TABLE.$function)($($argument),*) }
    };
}

/// Calls an entry point that must succeed.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(code!($function($($argument),*)), divvy_abi::CUDA_SUCCESS, stringify!($function))
    };
}

/// Calls an entry point that writes one result first, and gives that.
macro_rules! get {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: all-zero bytes are a value of every number and handle.
        let mut value = unsafe { std::mem::zeroed() };
        cu!($function(&raw mut value $(, $argument)*));
        value
    }};
}

pub(crate) use {code, cu, get};

/// Messages of the calls that were waited for, and of those that were not.
#[derive(Default)]
pub struct Counts {
    pub calls: AtomicU64,
    pub submits: AtomicU64,
    /// How often the program waited: for one call, or for several that were sent one after the other.
    pub trips: AtomicU64,
    /// Each message as a line.
    pub log: Mutex<Vec<String>>,
    /// The server says of every address that it is no device memory.
    pub denies: AtomicBool,
}

/// A server over channels.
pub struct InProcess {
    pub server: Arc<Server>,
    pub counts: Arc<Counts>,
    pub message: usize,
    pub region: Option<Region>,
}

struct Channels {
    to: Sender<(Vec<u8>, bool)>,
    from: Receiver<Vec<u8>>,
    counts: Arc<Counts>,
    message: usize,
    /// A call was sent since the last wait.
    posted: bool,
}

impl InProcess {
    /// Over a TCP connection of the thread's own.
    fn open_tcp(&self) -> Box<dyn Transport> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        ours.set_nodelay(true).unwrap();
        theirs.set_nodelay(true).unwrap();
        let (mut session, message) = (self.server.session(), self.message);
        std::thread::spawn(move || {
            let mut frames = Frames::new(theirs, message);
            let mut received = Vec::new();
            while frames.take(&mut received).is_ok() {
                let sent = match session.receive(&received) {
                    Ok(Some(answer)) => frames.put(answer).and_then(|()| frames.flush()),
                    Ok(None) => Ok(()),
                    Err(_) => return,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        let transport = StreamTransport::new(ours, self.message);
        Box::new(Counting {
            transport,
            counts: Arc::clone(&self.counts),
            posted: false,
        })
    }
}

impl Connector for InProcess {
    fn open(&self, _: u32) -> Result<Box<dyn Transport>, NotOpened> {
        if over_tcp() {
            return Ok(self.open_tcp());
        }
        let (to, messages) = channel::<(Vec<u8>, bool)>();
        let (answers, from) = channel();
        let mut session = self.server.session();
        std::thread::spawn(move || {
            // A message that is none ends the connection: the channels close.
            while let Ok((message, _)) = messages.recv() {
                match session.receive(&message) {
                    Ok(Some(answer)) => drop(answers.send(answer.to_vec())),
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
        });
        Ok(Box::new(Channels {
            to,
            from,
            counts: Arc::clone(&self.counts),
            message: self.message,
            posted: false,
        }))
    }

    fn region(&self) -> Option<Region> {
        self.region.clone()
    }
}

impl Counts {
    fn note(&self, message: &[u8], waits: bool) {
        let counter = if waits { &self.calls } else { &self.submits };
        counter.fetch_add(1, Ordering::Relaxed);
        self.log.lock().unwrap().push(Printed(message).to_string());
    }

    /// An answer on its way to the program.
    fn passed(&self, answer: &mut [u8]) {
        let asked = Header::read(answer).is_ok_and(|(header, _)| header.id == IS_DEVICE);
        if asked && self.denies.load(Ordering::Relaxed) {
            // The last two bytes are the answer to it, for two addresses.
            let end = answer.len();
            answer[end - 2..].fill(0);
        }
    }
}

/// Counts the messages of a transport.
struct Counting<T> {
    transport: T,
    counts: Arc<Counts>,
    /// A call was sent since the last wait.
    posted: bool,
}

impl<T: Transport> Transport for Counting<T> {
    fn capacity(&self) -> usize {
        self.transport.capacity()
    }

    fn submit(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.counts.note(message, false);
        self.transport.submit(message)
    }

    fn post(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.counts.note(message, true);
        self.posted = true;
        self.transport.post(message)
    }

    fn take(&mut self, answer: &mut Vec<u8>) -> Result<(), Lost> {
        let waits = u64::from(std::mem::take(&mut self.posted));
        self.counts.trips.fetch_add(waits, Ordering::Relaxed);
        self.transport.take(answer)?;
        self.counts.passed(answer);
        Ok(())
    }
}

impl Channels {
    fn send(&self, message: &[u8], waits: bool) -> Result<(), Lost> {
        self.counts.note(message, waits);
        self.to.send((message.to_vec(), waits)).map_err(|_| Lost)
    }
}

impl Transport for Channels {
    fn capacity(&self) -> usize {
        self.message
    }

    fn submit(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.send(message, false)
    }

    fn post(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.posted = true;
        self.send(message, true)
    }

    fn take(&mut self, answer: &mut Vec<u8>) -> Result<(), Lost> {
        let waits = u64::from(std::mem::take(&mut self.posted));
        self.counts.trips.fetch_add(waits, Ordering::Relaxed);
        *answer = self.from.recv().map_err(|_| Lost)?;
        self.counts.passed(answer);
        Ok(())
    }
}

/// Connects this process to a server of its own over the emulated driver, with messages of so many bytes.
pub fn connect(message: usize) -> (Arc<Server>, Arc<Counts>) {
    let quota = Quota {
        message,
        ..Quota::default()
    };
    connect_to(Server::new(&EMULATED, quota), message)
}

/// The driver below.
pub static EMULATED: Table = divvy_emulator::TABLE;

/// Connects this process to a server.
pub fn connect_to(server: Arc<Server>, message: usize) -> (Arc<Server>, Arc<Counts>) {
    connect_by(server, message, None)
}

/// The same, with shared memory between the two sides: two mappings, as two processes have.
pub fn connect_shared(quota: Quota) -> (Arc<Server>, Arc<Counts>) {
    let shape = Shape {
        channels: 1,
        data_bytes: quota.area,
        ..Shape::default()
    };
    let (ours, fd) = Region::create(&shape).unwrap();
    let theirs = Region::attach(fd.as_fd(), Backing::Sealed).unwrap();
    let server = Server::new(&EMULATED, quota);
    server.share(&ours);
    connect_by(server, quota.message, Some(theirs))
}

fn connect_by(server: Arc<Server>, message: usize, region: Option<Region>) -> (Arc<Server>, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let connector = InProcess {
        server: Arc::clone(&server),
        counts: Arc::clone(&counts),
        message,
        region,
    };
    assert!(divvy_remote::client::connect(Box::new(connector), |_| {}));
    (server, counts)
}

const ROLE: &str = "DIVVY_TEST_ROLE";

/// The role of a process whose messages go over TCP.
const TCP: &str = "tcp";

fn over_tcp() -> bool {
    std::env::var_os(ROLE).is_some_and(|role| role == TCP)
}

/// Runs a test's body in a process of its own, with its own run directory: a driver's state is its process's. The body runs
/// twice: its messages go through channels, and then over TCP.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ROLE).is_some() {
        return body();
    }
    for role in ["channels", TCP] {
        run(test, role);
    }
}

fn run(test: &str, role: &str) {
    let directory = TempDir::new().unwrap();
    let mut command = divvy_own_process::command(test);
    for inherited in [
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "XDG_RUNTIME_DIR",
        "LD_PRELOAD",
    ] {
        command.env_remove(inherited);
    }
    let output = command
        .env(ROLE, role)
        .env("DIVVY_RUN_DIR", directory.path())
        .env("DIVVY_EMULATED", "h100*2")
        .env("DIVVY_LOG", "stderr")
        .output()
        .unwrap();
    divvy_own_process::assert_passed(test, &output);
}

/// Initialises the driver and makes the primary context of a device current.
pub fn start(device: i32) -> CUcontext {
    cu!(cuInit(0));
    let context: CUcontext = get!(cuDevicePrimaryCtxRetain(device));
    cu!(cuCtxSetCurrent(context));
    context
}

/// `c[i] = a[i] + b[i]` for i < n.
pub const VECTOR_ADD: &str = include_str!("add.ptx");
