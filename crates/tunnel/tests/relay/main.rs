//! A program, its relay, a server over TLS and a worker, all in one process on the loopback interface.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use divvy_abi::*;
use divvy_model::{Code, Fault};
use divvy_remote::LocalConnector;
use divvy_remote::local::serve::{End, serve};
use divvy_remote::server::{Quota, Server};
use divvy_tunnel::certificate::Period;
use divvy_tunnel::far::{Host, Slot};
use divvy_tunnel::near::{Relay, Session, devices};
use divvy_tunnel::{Allowance, Authority, Identity, Wanted, a_year, far, tls};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tempfile::TempDir;

static EMULATED: Table = divvy_emulator::TABLE;

macro_rules! code {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: a test passes arguments of the kinds the function takes.
        unsafe { (divvy_remote::client::TABLE.$function)($($argument),*) }
    };
}

macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(code!($function($($argument),*)), CUDA_SUCCESS, stringify!($function))
    };
}

mod cuts;

/// The workers that were started, and the log.
#[derive(Clone, Default)]
struct Here {
    workers: Arc<Mutex<Vec<OwnedFd>>>,
    /// Slices that were made, and those that ended.
    made: Arc<Mutex<usize>>,
    ended: Arc<Mutex<usize>>,
    /// Clients that wait in the queue.
    queueing: Arc<AtomicUsize>,
}

impl Host for Here {
    fn devices(&self) -> Result<serde_json::Value, Fault> {
        Ok(serde_json::json!([{"name": "emulated"}]))
    }

    fn open(
        &self,
        client: &str,
        allowance: &(dyn Fn() -> Result<Allowance, Fault> + Sync),
        wanted: &Wanted,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Box<dyn Slot>, Fault> {
        assert_eq!((client, allowance()), ("laptop", Ok(Allowance::default())));
        assert!(goes_on());
        match wanted.device.as_str() {
            "full" => Err(Fault::new(Code::DeviceFull, "no room").hint("wait")),
            "queue" => {
                self.queueing.fetch_add(1, Ordering::SeqCst);
                until(|| !goes_on());
                self.queueing.fetch_sub(1, Ordering::SeqCst);
                Err(Fault::new(Code::DeviceFull, "no room").hint("wait"))
            }
            _ => {
                *self.made.lock().unwrap() += 1;
                Ok(Box::new(Slice(self.clone())))
            }
        }
    }

    fn log(&self, _: &str) {}
}

struct Slice(Here);

impl Slot for Slice {
    /// A thread in the place of a worker's process.
    fn connect(&self) -> Result<OwnedFd, Fault> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let theirs: &'static OwnedFd = Box::leak(Box::new(theirs));
        std::thread::spawn(|| {
            serve(
                theirs.as_fd(),
                &Server::new(&EMULATED, Quota::default()),
                |_: End| {
                    loop {
                        std::thread::park();
                    }
                },
            )
        });
        self.0.workers.lock().unwrap().push(theirs.try_clone().unwrap());
        Ok(ours)
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap() += 1;
    }
}

struct Site {
    folder: TempDir,
    here: Here,
    address: String,
}

impl Site {
    fn new() -> Self {
        Self::with(a_year())
    }

    /// The server's certificate holds in this period.
    fn with(period: Period) -> Self {
        let folder = TempDir::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let here = Here::default();
        let authority = Authority::open(&folder.path().join("state")).unwrap();
        let config = tls::server(&authority.server(period).unwrap()).unwrap();
        let host = Box::new(here.clone());
        std::thread::spawn(move || far::serve(&listener, config, authority, host));
        Self {
            folder,
            here,
            address,
        }
    }

    fn authority(&self) -> Authority {
        Authority::open(&self.folder.path().join("state")).unwrap()
    }

    fn invite(&self) -> Identity {
        self.authority().invite("laptop", a_year()).unwrap()
    }

    /// Connects this process to a device there, by this address.
    fn connect(&self, address: &str) -> Relay {
        self.connect_as(&self.invite(), address)
    }

    fn connect_as(&self, identity: &Identity, address: &str) -> Relay {
        let session = Session::open(address, identity, &Wanted::default(), || {}).unwrap();
        let relay = session.relay(self.folder.path()).unwrap();
        let connector = LocalConnector::new(relay.socket().to_owned());
        assert!(divvy_remote::client::connect(Box::new(connector), |_| {}));
        relay
    }
}

fn alone(test: &str, body: impl FnOnce()) {
    const ROLE: &str = "DIVVY_TEST_ROLE";
    if std::env::var_os(ROLE).is_some() {
        return body();
    }
    let directory = TempDir::new().unwrap();
    let mut command = divvy_own_process::command(test);
    for inherited in ["CUDA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR", "LD_PRELOAD"] {
        command.env_remove(inherited);
    }
    let output = command
        .env(ROLE, "alone")
        .env("DIVVY_RUN_DIR", directory.path())
        .env("DIVVY_EMULATED", "h100")
        .output()
        .unwrap();
    divvy_own_process::assert_passed(test, &output);
}

fn start() {
    cu!(cuInit(0));
    let mut context: CUcontext = std::ptr::null_mut();
    cu!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
    cu!(cuCtxSetCurrent(context));
}

fn allocate(bytes: usize) -> CUdeviceptr {
    let mut memory = 0;
    cu!(cuMemAlloc_v2(&raw mut memory, bytes));
    memory
}

fn there_and_back(from: &[u8], to: &mut [u8]) {
    let memory = allocate(from.len());
    cu!(cuMemcpyHtoD_v2(memory, from.as_ptr().cast(), from.len()));
    cu!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), memory, from.len()));
    cu!(cuMemFree_v2(memory));
    assert!(from == to);
}

fn free() -> CUresult {
    let (mut free, mut total) = (0, 0);
    code!(cuMemGetInfo_v2(&raw mut free, &raw mut total))
}

/// Waits for what another thread does; a test that hangs fails by the runner's limit.
fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_uses_a_device_behind_tls() {
    alone("a_program_uses_a_device_behind_tls", || {
        let site = Site::new();
        let relay = site.connect(&site.address);
        start();
        let numbers: Vec<u8> = (0..5_000_001_usize).map(|at| (at * 7 + at / 251) as u8).collect();
        for bytes in [1, 1000, 70_000, numbers.len()] {
            there_and_back(&numbers[..bytes], &mut vec![0; bytes]);
        }
        // Pinned memory is plain memory here.
        let mut pinned: *mut c_void = std::ptr::null_mut();
        cu!(cuMemHostAlloc(&raw mut pinned, 100_000, 0));
        // SAFETY: it was allocated with this length, and is freed below.
        let slice = unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 100_000) };
        there_and_back(&numbers[..100_000], slice);
        cu!(cuMemFreeHost(pinned));
        assert_eq!(code!(cuMemFreeHost(pinned)), CUDA_ERROR_INVALID_VALUE);

        // Rows without a staging area: the second half of each, there and back.
        let memory = allocate(8 * 16);
        cu!(cuMemcpyHtoD_v2(memory, numbers.as_ptr().cast(), 8 * 16));
        let mut rows = [0_u8; 8 * 8];
        // SAFETY: all-zero bytes are a value of it.
        let mut copy: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
        copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        (copy.srcDevice, copy.srcPitch, copy.srcXInBytes) = (memory, 16, 8);
        copy.dstMemoryType = CU_MEMORYTYPE_HOST;
        (copy.dstHost, copy.dstPitch) = (rows.as_mut_ptr().cast(), 8);
        (copy.WidthInBytes, copy.Height) = (8, 8);
        cu!(cuMemcpy2D_v2(&raw const copy));
        for (row, got) in rows.chunks(8).enumerate() {
            assert_eq!(got, &numbers[16 * row + 8..16 * row + 16], "row {row}");
        }

        // Each thread has a connection, also one after the other on one channel.
        let mut context: CUcontext = std::ptr::null_mut();
        cu!(cuCtxGetCurrent(&raw mut context));
        let context = context.expose_provenance();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        cu!(cuCtxSetCurrent(std::ptr::with_exposed_provenance_mut(context)));
                        there_and_back(&numbers[..300_000], &mut vec![0; 300_000]);
                    });
                }
            });
        }
        // Submitted calls go without a call that waits behind them.
        let memory = allocate(4);
        cu!(cuMemsetD8Async(memory, 9, 4, std::ptr::null_mut()));
        cu!(cuCtxSynchronize());
        assert_eq!(
            site.here.workers.lock().unwrap().len(),
            1,
            "one program, one worker"
        );

        drop(relay);
        assert_eq!(free(), CUDA_ERROR_DEVICE_UNAVAILABLE);
        until(|| *site.here.ended.lock().unwrap() == 1);
    });
}

#[test]
fn the_end_of_a_worker_reaches_the_program() {
    alone("the_end_of_a_worker_reaches_the_program", || {
        let site = Site::new();
        let _relay = site.connect(&site.address);
        start();
        assert_eq!(free(), CUDA_SUCCESS);
        for worker in site.here.workers.lock().unwrap().iter() {
            rustix::net::shutdown(worker, rustix::net::Shutdown::Both).unwrap();
        }
        until(|| {
            // This worker is a thread, which looks at its socket once its ring has been quiet for a while.
            std::thread::sleep(Duration::from_millis(250));
            free() == CUDA_ERROR_DEVICE_UNAVAILABLE
        });
        assert_eq!(
            *site.here.ended.lock().unwrap(),
            0,
            "the slice stays for other programs"
        );
    });
}

/// Carries bytes between clients and a server until it is told to cut all connections.
struct Wire {
    address: String,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    /// What the server says is not carried any more.
    stalls: Arc<AtomicBool>,
}

impl Wire {
    fn to(server: &str) -> Self {
        Self::cutting(server, usize::MAX)
    }

    /// Cuts each connection behind so many bytes, of both directions.
    fn cutting(server: &str, most: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server: SocketAddr = server.parse().unwrap();
        let (connections, stalls) = (Arc::default(), Arc::default());
        let wire = Self {
            address,
            connections: Arc::clone(&connections),
            stalls: Arc::clone(&stalls),
        };
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = TcpStream::connect(server) else {
                    return;
                };
                connections.lock().unwrap().push(near.try_clone().unwrap());
                connections.lock().unwrap().push(far.try_clone().unwrap());
                let left = Arc::new(AtomicUsize::new(most));
                let ways = [
                    (near.try_clone().unwrap(), far.try_clone().unwrap(), None),
                    (far, near, Some(Arc::clone(&stalls))),
                ];
                for (from, to, stalls) in ways {
                    let left = Arc::clone(&left);
                    std::thread::spawn(move || carry(from, to, &left, stalls.as_deref()));
                }
            }
        });
        wire
    }

    fn cut(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            let _closed = connection.shutdown(Shutdown::Both);
        }
    }

    /// From now on nothing that the server says arrives, and the connections stay.
    fn stall(&self) {
        self.stalls.store(true, Ordering::SeqCst);
    }
}

/// Carries bytes one way, so many of both ways together.
fn carry(mut from: TcpStream, mut to: TcpStream, left: &AtomicUsize, stalls: Option<&AtomicBool>) {
    let mut bytes = [0; 1 << 14];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        until(|| stalls.is_none_or(|stalls| !stalls.load(Ordering::SeqCst)) || is_over(&to));
        let before = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                Some(left.saturating_sub(count))
            })
            .unwrap();
        if to.write_all(&bytes[..count.min(before)]).is_err() {
            break;
        }
        if count >= before {
            let _closed = from.shutdown(Shutdown::Both);
            let _closed = to.shutdown(Shutdown::Both);
        }
    }
    let _closed = to.shutdown(Shutdown::Write);
}

/// Whether it was shut down.
fn is_over(stream: &TcpStream) -> bool {
    stream.take_error().is_err() || stream.peer_addr().is_err()
}

#[test]
fn a_cut_during_transfers_ends_the_device() {
    alone("a_cut_during_transfers_ends_the_device", || {
        let site = Site::new();
        let wire = Wire::to(&site.address);
        let relay = site.connect(&wire.address);
        start();
        let bytes = vec![3_u8; 1 << 20];
        let memory = allocate(bytes.len());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                wire.cut();
            });
            // Until the cut comes, in whatever place of a transfer.
            until(|| {
                let code = code!(cuMemcpyHtoD_v2(memory, bytes.as_ptr().cast(), bytes.len()));
                assert!(
                    code == CUDA_SUCCESS || code == CUDA_ERROR_DEVICE_UNAVAILABLE,
                    "{code:?}"
                );
                code != CUDA_SUCCESS
            });
        });
        until(|| relay.is_cut());
        until(|| *site.here.ended.lock().unwrap() == 1);
        assert_eq!(free(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    });
}

#[test]
fn a_program_starts_threads_until_its_host_is_forgotten() {
    alone("a_program_starts_threads_until_its_host_is_forgotten", || {
        let site = Site::new();
        let old = site.invite();
        let session = Session::open(&site.address, &old, &Wanted::default(), || {}).unwrap();
        let relay = session.relay(site.folder.path()).unwrap();
        let connector = LocalConnector::new(relay.socket().to_owned());
        assert!(divvy_remote::client::connect(Box::new(connector), |_| {}));
        start();
        let on_a_new_thread = || std::thread::spawn(free).join().unwrap();

        // Invited again: what runs goes on, and the old certificate opens nothing more.
        site.invite();
        assert_eq!(on_a_new_thread(), CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(refusal(&site, &old).code, Code::RemoteIdentity);
        let second = Session::open(&site.address, &old, &Wanted::default(), || {}).map(drop);
        assert_eq!(second.map_err(|fault| fault.code), Err(Code::RemoteIdentity));

        // Forgotten: threads that have a connection go on, and new ones get none.
        site.authority().forget("laptop").unwrap();
        assert_eq!(free(), CUDA_SUCCESS);
        assert_eq!(on_a_new_thread(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    });
}

#[test]
fn a_cut_while_nothing_runs_ends_the_slice() {
    let site = Site::new();
    let wire = Wire::to(&site.address);
    let session = Session::open(&wire.address, &site.invite(), &Wanted::default(), || {}).unwrap();
    let relay = session.relay(site.folder.path()).unwrap();
    wire.cut();
    until(|| *site.here.ended.lock().unwrap() == 1);
    until(|| relay.is_cut());
}

fn refusal(site: &Site, identity: &Identity) -> Fault {
    let fault = devices(&site.address, identity).expect_err("it must not be accepted");
    assert!(fault.hint.is_some(), "{fault:?}");
    fault
}

#[test]
fn each_wrong_certificate_has_its_sentence() {
    let site = Site::new();
    assert_eq!(
        devices(&site.address, &site.invite()).unwrap(),
        serde_json::json!([{"name": "emulated"}])
    );
    let day = Duration::from_secs(24 * 3600);
    let now = SystemTime::now();
    let (past, future) = ((now - 3 * day, now - day), (now + day, now + 3 * day));
    let invite = |period| site.authority().invite("laptop", period).unwrap();
    let expect = |fault: Fault, words: &str| {
        assert_eq!(fault.code, Code::RemoteIdentity, "{fault:?}");
        assert!(fault.message.contains(words), "{fault:?}");
    };
    expect(refusal(&site, &invite(past)), "is not valid now");
    expect(refusal(&site, &invite(future)), "is not valid now");

    // Of another authority: this host does not trust the server. With the right authority and another's certificate, as
    // of one that signed its own, the server does not trust this host.
    let other = Site::new();
    expect(
        refusal(&site, &other.invite()),
        "is not the server that this host joined",
    );
    let (own, theirs) = (site.invite(), other.invite());
    let block = |text: &str, nth: usize| {
        let mut parts = text.split_inclusive("-----END CERTIFICATE-----\n");
        parts.nth(nth).unwrap().to_owned()
    };
    let mixed = format!(
        "{}{}{}",
        block(theirs.text(), 0),
        block(own.text(), 1),
        block(theirs.text(), 2)
    );
    expect(
        refusal(&site, &Identity::read(&mixed).unwrap()),
        "does not know the authority",
    );

    let forgotten = site.invite();
    site.authority().forget("laptop").unwrap();
    expect(refusal(&site, &forgotten), "forgotten");

    // A server's certificate is no client's.
    let server = site.authority().server(a_year()).unwrap();
    expect(refusal(&site, &server), "does not accept");

    let expired = Site::with(past);
    expect(refusal(&expired, &expired.invite()), "has expired");
    let early = Site::with(future);
    expect(refusal(&early, &early.invite()), "not valid yet");
}

#[test]
fn what_is_no_server_is_told_apart() {
    let site = Site::new();
    let identity = site.invite();
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let silent = devices(&closed, &identity).expect_err("closed");
    assert!(silent.code == Code::RemoteUnreachable && silent.message.contains("does not answer"));
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        let mut hello = [0; 1024];
        let _read = stream.read(&mut hello);
        let _written = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let web = devices(&address, &identity).expect_err("another protocol");
    assert!(web.message.contains("does not speak"), "{web:?}");

    let full = Wanted {
        device: "full".into(),
        ..Wanted::default()
    };
    let refused = Session::open(&site.address, &identity, &full, || {}).expect_err("full");
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (Code::DeviceFull, "no room")
    );
}

#[test]
fn others_do_not_keep_the_server_from_its_clients() {
    let site = Site::new();
    let mut silent = Vec::new();
    for bytes in [
        &b""[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16, 3, 1, 0xff, 0xff, 1],
        &[0; 5000],
    ] {
        let mut stream = TcpStream::connect(&site.address).unwrap();
        let _cut = stream.write_all(bytes);
        silent.push(stream);
    }
    assert!(devices(&site.address, &site.invite()).is_ok());

    // More than one host has places for, from another address than the client's. Those beyond are closed.
    let server: SocketAddr = site.address.parse().unwrap();
    let other = SocketAddr::from(([127, 0, 0, 2], 0));
    let mut crowd: Vec<TcpStream> = (0..300)
        .map(|_| {
            let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
            let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None).unwrap();
            rustix::net::bind(&socket, &other).unwrap();
            rustix::net::connect(&socket, &server).unwrap();
            TcpStream::from(socket)
        })
        .collect();
    until(|| {
        crowd.iter_mut().any(|stream| {
            stream.set_nonblocking(true).unwrap();
            matches!(stream.read(&mut [0]), Ok(0))
        })
    });
    assert!(devices(&site.address, &site.invite()).is_ok());
}
