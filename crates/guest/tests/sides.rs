//! Broker and relay with each other, in one process: the serial port is a pair of sockets, the device's memory is the
//! relay's own file, and the worker is a thread that does what a worker does with what is brought.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use divvy_guest::broker::{self, Broker};
use divvy_guest::frame::{Frame, ToGuest, ToHost, VERSION};
use divvy_guest::memory::Memory;
use divvy_guest::relay::{self, Event, Relay};
use divvy_remote::local::handshake::{self, Heard};
use divvy_remote::server::Traffic;
use divvy_ring::doorbell::Naps;
use divvy_ring::{Backing, Peer, Region, Shape};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tempfile::TempDir;

const BYTES: u64 = 1 << 23;
const COUNT: u32 = 2;
const TRAFFIC: Traffic = Traffic {
    inline: 0,
    staged: 10,
    shared: 0,
    bypass: 10,
};

fn listen(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("an address")).expect("bound");
    rustix::net::listen(&socket, 8).expect("it listens");
    socket
}

fn connect(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("an address")).expect("connected");
    // A program that is not served fails a test, and does not hold it up.
    let limit = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit)
        .expect("set");
    socket
}

/// Serves each connection as a worker does: messages come back reversed. `b"die"` ends it.
fn workers(listener: OwnedFd) {
    loop {
        let Ok(socket) = rustix::net::accept(&listener) else {
            return;
        };
        thread::spawn(move || work(&socket));
    }
}

fn work(socket: &OwnedFd) {
    let shape = Shape {
        channels: 1,
        ..Shape::default()
    };
    let (mut region, fd) = Region::create(&shape).expect("a region");
    handshake::greet(socket.as_fd(), fd.as_fd(), None).expect("sent");
    while let Ok(Some(heard)) = handshake::heard(socket.as_fd()) {
        match heard {
            Heard::Begin => {}
            Heard::Ask => handshake::report(socket.as_fd(), TRAFFIC).expect("sent"),
            Heard::Memory(memory, part) => {
                let shape = Shape::within(part.bytes, 1 << 16).expect("it has room");
                region = Region::create_in_sealed(memory.as_fd(), part.at, &shape).expect("a region");
                handshake::agree(socket.as_fd()).expect("sent");
            }
            Heard::Channel(channel) => {
                let look = rustix::io::dup(socket).expect("a descriptor");
                let peer = Peer::new(Naps::default(), move || handshake::is_open(&look));
                let mut server = region.server(channel, peer).expect("a channel");
                let own = rustix::io::dup(socket).expect("a descriptor");
                thread::spawn(move || {
                    let mut dies = false;
                    let mut serve = || {
                        server.serve_one(None, |message, reply| {
                            dies |= message == b"die";
                            reply.extend(message.iter().rev());
                        })?;
                        Ok::<bool, divvy_ring::RingError>(!dies)
                    };
                    while let Ok(true) = serve() {}
                    // A process lets go of its memory before its sockets are closed.
                    drop(server);
                    if dies {
                        let _ended = rustix::net::shutdown(&own, rustix::net::Shutdown::Both);
                    }
                });
            }
        }
    }
    let _ended = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// A machine and its host.
struct Sides {
    folder: TempDir,
    /// The machine's end of the port.
    port: OwnedFd,
    files: Vec<PathBuf>,
    events: Receiver<Event>,
    ends: Receiver<(relay::End, usize)>,
}

impl Sides {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let listener = listen(&folder.path().join("worker"));
        thread::spawn(move || workers(listener));
        let (port, its) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair");
        let memory = Memory::new(BYTES, COUNT, 0).expect("memory");
        let files = vec![PathBuf::from(format!(
            "/proc/self/fd/{}",
            memory.file().as_raw_fd()
        ))];
        let (say, events) = channel();
        let (end, ends) = channel();
        let worker = folder.path().join("worker");
        thread::spawn(move || {
            let mut relay = Relay::new(memory, worker, move |event| drop(say.send(event)));
            let ended = relay.serve(its.as_fd(), None).expect("it serves");
            let _told = end.send((ended, relay.used()));
        });
        Self {
            folder,
            port,
            files,
            events,
            ends,
        }
    }

    /// Starts a broker on a copy of the port; what ended it comes by the channel.
    fn broker(&self, name: &str) -> (PathBuf, Receiver<broker::End>) {
        let path = self.folder.path().join(name);
        let listener = listen(&path);
        let port = rustix::io::dup(&self.port).expect("a descriptor");
        let files = self.files.clone();
        let (end, ended): (Sender<broker::End>, _) = channel();
        thread::spawn(move || {
            let served = Broker::new(port.as_fd(), listener.as_fd(), &files);
            let _told = end.send(match served {
                Ok(broker) => broker.serve(),
                Err(end) => end,
            });
        });
        (path, ended)
    }

    fn event(&self) -> Event {
        self.events
            .recv_timeout(Duration::from_secs(60))
            .expect("an event")
    }
}

/// A program in the guest.
struct Program {
    socket: OwnedFd,
    region: Region,
}

impl Program {
    fn start(broker: &Path) -> Self {
        let socket = connect(broker);
        let (memory, at) = handshake::greeted(socket.as_fd()).expect("a greeting");
        let at = at.expect("it is a part of a file");
        let region = Region::attach(memory.as_fd(), Backing::File(at)).expect("a region");
        Self { socket, region }
    }

    fn call(&self, message: &[u8]) -> Result<Vec<u8>, divvy_ring::RingError> {
        let look = rustix::io::dup(&self.socket).expect("a descriptor");
        let mut client = self
            .region
            .client(Peer::new(Naps::default(), move || handshake::is_open(&look)))?;
        handshake::announce(self.socket.as_fd(), client.channel()).expect("sent");
        let mut reply = Vec::new();
        client.call(message, &mut reply)?;
        Ok(reply)
    }
}

#[test]
fn a_program_reaches_its_worker_and_its_end_frees_its_part() {
    let sides = Sides::new();
    let (broker, _ended) = sides.broker("broker");
    // One after the other, more of them than there are parts.
    for number in 1..=2 * COUNT {
        let program = Program::start(&broker);
        if number == 1 {
            assert_eq!(sides.event(), Event::Guest { version: VERSION });
        }
        assert_eq!(sides.event(), Event::Opened(number));
        assert_eq!(program.call(b"abc"), Ok(b"cba".to_vec()));
        let (first, bytes) = program.region.data();
        assert!(bytes > BYTES / u64::from(COUNT) / 2);
        // SAFETY: the byte lies in the region, which is mapped; no other thread uses it.
        unsafe {
            assert_eq!(first.as_ptr().read_volatile(), 0, "nothing of the one before");
            first.as_ptr().write_volatile(7);
        }
        drop(program);
        assert_eq!(sides.event(), Event::Ended(number, Some(TRAFFIC)));
    }
    drop(sides.port);
}

#[test]
fn a_worker_that_ends_is_the_end_of_its_program_alone() {
    let sides = Sides::new();
    let (broker, _ended) = sides.broker("broker");
    let (first, second) = (Program::start(&broker), Program::start(&broker));
    assert!(matches!(sides.event(), Event::Guest { .. }));
    assert_eq!(
        [sides.event(), sides.event()],
        [Event::Opened(1), Event::Opened(2)]
    );
    let _a_reply_or_none = first.call(b"die");
    assert_eq!(sides.event(), Event::Ended(1, None));
    while handshake::is_open(&first.socket) {
        thread::yield_now();
    }
    assert_eq!(second.call(b"abc"), Ok(b"cba".to_vec()));
    // Its program may still write into its part, which is another's only when that has let go.
    let third = {
        let broker = broker.clone();
        thread::spawn(move || Program::start(&broker))
    };
    let early = sides.events.recv_timeout(Duration::from_millis(100));
    assert!(early.is_err(), "{early:?}");
    drop(first);
    assert_eq!(sides.event(), Event::Opened(3));
    let third = third.join().expect("no panic");
    assert_eq!(third.call(b"de"), Ok(b"ed".to_vec()));
}

/// The machine is switched off with a program in it: what was copied for that is told all the same.
#[test]
fn the_end_of_a_machine_tells_its_programs_ends() {
    let sides = Sides::new();
    let (broker, _ended) = sides.broker("broker");
    let program = Program::start(&broker);
    assert_eq!(program.call(b"abc"), Ok(b"cba".to_vec()));
    rustix::net::shutdown(&sides.port, rustix::net::Shutdown::Both).expect("it was open");
    let ended = sides.ends.recv_timeout(Duration::from_secs(60)).expect("it ends");
    assert_eq!(ended, (relay::End::Closed, 0));
    let events: Vec<Event> = sides.events.try_iter().collect();
    assert_eq!(events.last(), Some(&Event::Ended(1, Some(TRAFFIC))), "{events:?}");
}

/// A program that finds no free part waits for one.
#[test]
fn more_programs_than_parts_take_turns() {
    let sides = Sides::new();
    let (broker, _ended) = sides.broker("broker");
    let (first, _second) = (Program::start(&broker), Program::start(&broker));
    let waiting = {
        let broker = broker.clone();
        thread::spawn(move || Program::start(&broker).call(b"abc"))
    };
    // One that gives up while it waits takes no part.
    drop(connect(&broker));
    drop(first);
    assert_eq!(waiting.join().expect("no panic"), Ok(b"cba".to_vec()));
}

#[test]
fn a_machine_that_starts_again_begins_without_programs() {
    let sides = Sides::new();
    let (broker, ended) = sides.broker("broker");
    let _before = [Program::start(&broker), Program::start(&broker)];
    // Another broker's greeting: all programs are over for the relay, and their parts are free.
    let hello = ToHost::Hello {
        version: VERSION,
        nonce: 5,
    };
    rustix::io::write(&sides.port, &hello.encode()).expect("sent");
    let events: Vec<Event> = (0..4).map(|_| sides.event()).collect();
    assert_eq!(events[3], Event::Guest { version: VERSION }, "{events:?}");
    assert_eq!(Program::start(&broker).call(b"abc"), Ok(b"cba".to_vec()));
    drop(ended);
}

#[test]
fn a_machine_with_another_version_is_told_and_not_served() {
    let sides = Sides::new();
    let hello = ToHost::Hello {
        version: VERSION + 1,
        nonce: 5,
    };
    let open = ToHost::Open { connection: 1 };
    for frame in [hello, open] {
        rustix::io::write(&sides.port, &frame.encode()).expect("sent");
    }
    let mut answer = [0; 40];
    assert_eq!(rustix::io::read(&sides.port, &mut answer), Ok(40));
    let answer = ToGuest::decode(&answer).expect("a frame");
    assert!(
        matches!(
            answer,
            ToGuest::Hello {
                version: VERSION,
                nonce: 5,
                ..
            }
        ),
        "{answer:?}"
    );
    assert_eq!(sides.event(), Event::Guest { version: VERSION + 1 });
    rustix::net::shutdown(&sides.port, rustix::net::Shutdown::Both).expect("ended");
    let ended = sides.ends.recv_timeout(Duration::from_secs(60)).expect("an end");
    assert_eq!(ended, (relay::End::Closed, 0));
    assert!(sides.events.try_recv().is_err(), "it was not served");
}

/// A broker that hears of another version, or of memory that this machine does not have, says so.
#[test]
fn a_broker_serves_no_other_version_and_no_other_memory() {
    for (version, bytes, expected) in [
        (VERSION + 1, BYTES, broker::End::OtherVersion(VERSION + 1)),
        (VERSION, BYTES, broker::End::NoMemory(rustix::io::Errno::NODEV)),
    ] {
        let (port, its) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair");
        let memory = Memory::new(BYTES / 2, 1, 0).expect("memory that is too small");
        let file = PathBuf::from(format!("/proc/self/fd/{}", memory.file().as_raw_fd()));
        let label = memory.label();
        let host = thread::spawn(move || {
            let mut hello = [0; 40];
            assert_eq!(rustix::io::read(&its, &mut hello), Ok(40));
            let Ok(ToHost::Hello { nonce, .. }) = ToHost::decode(&hello) else {
                panic!("it greets first");
            };
            // First the rest of what was for an earlier broker.
            let answer = ToGuest::Hello {
                version,
                nonce,
                label,
                bytes,
            };
            let stale = ToGuest::Closed { connection: 9 };
            let said = [&stale.encode()[5..], &stale.encode(), &answer.encode()].concat();
            rustix::io::write(&its, &said).expect("sent");
            its
        });
        let folder = TempDir::new().expect("a folder");
        let listener = listen(&folder.path().join("broker"));
        let end = Broker::new(port.as_fd(), listener.as_fd(), &[file]).err();
        assert_eq!(end, Some(expected));
        host.join().expect("no panic");
    }
}

#[test]
fn what_is_no_frame_ends_the_machines_connection() {
    let opened = ToHost::Open { connection: 1 };
    let hello = ToHost::Hello {
        version: VERSION,
        nonce: 1,
    };
    let early = ToHost::Channel {
        connection: 1,
        channel: 0,
    };
    for frames in [
        vec![[0xa5; 40]],
        vec![hello.encode(), opened.encode(), opened.encode()],
        vec![hello.encode(), opened.encode(), early.encode()],
    ] {
        let sides = Sides::new();
        rustix::io::write(&sides.port, &frames.concat()).expect("sent");
        let ended = sides.ends.recv_timeout(Duration::from_secs(60)).expect("an end");
        assert_eq!(ended, (relay::End::Malformed, 0));
    }
}

/// A program can write wherever the device's memory is: the next broker finds the label all the same.
#[test]
fn a_label_that_was_written_over_is_written_again() {
    let sides = Sides::new();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&sides.files[0])
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[0xa5; 4096]))
        .expect("written over");
    let (broker, _ended) = sides.broker("broker");
    assert_eq!(Program::start(&broker).call(b"abc"), Ok(b"cba".to_vec()));
}

/// Bytes that are not read make a socket's close wait. A program sends such a socket, and others are served meanwhile.
#[test]
fn a_descriptor_that_is_slow_to_close_holds_up_no_other_program() {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    let sides = Sides::new();
    let (broker, _ended) = sides.broker("broker");
    let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
    let mut slow = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    slow.set_nonblocking(true).expect("set");
    while slow.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&slow, Some(Duration::from_secs(600))).expect("set");
    // One closes it after reading it, and one with the connection, behind a word that is refused.
    let hostile = connect(&broker);
    handshake::greet(hostile.as_fd(), slow.as_fd(), None).expect("sent");
    handshake::greet(hostile.as_fd(), slow.as_fd(), None).expect("sent");
    drop(slow);
    for _ in 0..2 * COUNT {
        assert_eq!(Program::start(&broker).call(b"abc"), Ok(b"cba".to_vec()));
    }
    drop(peer);
}

/// A machine may be suspended at any moment, and its port is full then.
#[test]
fn a_machine_that_takes_nothing_does_not_keep_its_relay() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let folder = TempDir::new().expect("a folder");
    let memory = Memory::new(BYTES, COUNT, 0).expect("memory");
    let (port, its) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a pair");
    let (until, asks) = std::io::pipe().expect("a pipe");
    let (end, ends) = channel();
    let worker = folder.path().join("worker");
    thread::spawn(move || {
        let mut relay = Relay::new(memory, worker, |_| ());
        let ended = relay.serve(its.as_fd(), Some(until.as_fd()));
        let _told = end.send(ended);
    });
    // Each greeting is answered. Its answers are not read, so the relay comes to where it waits for room.
    let hello = ToHost::Hello {
        version: VERSION,
        nonce: 1,
    };
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: 300_000_000,
    };
    rustix::io::ioctl_fionbio(&port, true).expect("set");
    loop {
        let mut room = [PollFd::new(&port, PollFlags::OUT)];
        if poll(&mut room, Some(&limit)).expect("a look") == 0 {
            break;
        }
        // A part of one that is cut off is of no account here.
        let _full = rustix::io::write(&port, &hello.encode());
    }
    drop(asks);
    let ended = ends.recv_timeout(Duration::from_secs(60)).expect("it comes back");
    assert_eq!(ended, Ok(relay::End::Asked));
}
