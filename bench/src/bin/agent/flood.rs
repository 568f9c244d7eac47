//! The floods: each runs in a process of the foreign user, on plain sockets, as fast as it can.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use divvy_ledger::attach::fetch;

/// What the foreign user does.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Flood {
    /// 1,100 connections that say half a request
    HalfOpen,
    /// 10,000 that say nothing
    Silent,
    /// 200 activations of a slice whose page server does not answer
    StuckPageServers,
    /// 5,600 questions a second, by 64 threads
    Questions,
    /// Places in the queue without end, from 16 processes
    Queue,
}

impl Flood {
    pub const ALL: [Self; 5] = [
        Self::HalfOpen,
        Self::Silent,
        Self::StuckPageServers,
        Self::Questions,
        Self::Queue,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::HalfOpen => "1,100 half-open connections",
            Self::Silent => "10,000 silent connections",
            Self::StuckPageServers => "200 stuck page servers",
            Self::Questions => "56,000 requests in 10 s",
            Self::Queue => "a flood of the queue",
        }
    }

    /// The name that the hidden flag takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::HalfOpen => "half-open",
            Self::Silent => "silent",
            Self::StuckPageServers => "stuck-page-servers",
            Self::Questions => "questions",
            Self::Queue => "queue",
        }
    }

    /// How many processes of the flooder do it.
    pub fn processes(self) -> usize {
        match self {
            // A process has one place.
            Self::Queue => 16,
            _ => 1,
        }
    }

    /// Floods for so long; says what became of it.
    pub fn run(self, socket: &Path, duration: Duration) -> anyhow::Result<String> {
        match self {
            Self::HalfOpen => Ok(hold(
                socket,
                duration,
                1100,
                b"GET /v1/slices HTTP/1.1\r\nhost: d",
            )),
            Self::Silent => Ok(hold(socket, duration, 10_000, b"")),
            Self::StuckPageServers => stuck_page_servers(socket, duration),
            Self::Questions => {
                let each = Duration::from_secs(64) / 5600;
                Ok(ask(socket, duration, 64, each, &message("GET", "/v1/slices", "")))
            }
            Self::Queue => {
                let word = "x".repeat(48 << 10);
                let body = format!(
                    r#"{{"ask":{{"request":{{"memory":{{"bytes":84825604096}}}},"command":["{word}"]}},"patience_ms":0}}"#
                );
                let asks = message("POST", "/v1/queue", &body);
                Ok(ask(socket, duration, 2, Duration::ZERO, &asks))
            }
        }
    }
}

/// A request as bytes.
pub fn message(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: divvy\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Holds so many connections open, and opens another for each that the agent closes.
fn hold(socket: &Path, duration: Duration, count: usize, said: &[u8]) -> String {
    let begin = Instant::now();
    let mut held: Vec<UnixStream> = Vec::new();
    let (mut opened, mut closed) = (0_u64, 0_u64);
    while begin.elapsed() < duration {
        held.retain_mut(|stream| {
            let open = match stream.read(&mut [0; 4096]) {
                Ok(bytes) => bytes > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
            closed += u64::from(!open);
            open
        });
        while held.len() < count && begin.elapsed() < duration {
            // A full backlog: the next round tries again.
            let Ok(mut stream) = UnixStream::connect(socket) else {
                break;
            };
            let _broken = stream.set_nonblocking(true);
            let _refused = stream.write_all(said);
            held.push(stream);
            opened += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    format!("opened {opened}, of which the agent closed {closed}")
}

/// Activates, again and again and 200 at once, a slice whose page server does not answer.
fn stuck_page_servers(socket: &Path, duration: Duration) -> anyhow::Result<String> {
    let ask = r#"{"request":{"memory":{"bytes":1073741824}},"command":["stuck"]}"#;
    let (status, answer) =
        exchange(socket, &message("POST", "/v1/slices", ask)).context("No slice was made")?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    let id = answer["slice"]["id"].as_str();
    let id = id.with_context(|| format!("{status}: {answer}"))?;
    let number = u32::from_str_radix(id, 16).context("The slice's id is no number")?;
    // As a `divvy run` fetches them. Nothing accepts on them.
    let _silent = fetch(&socket.with_file_name("keep.sock"), number).context("No sockets came")?;
    let activate = message("POST", &format!("/v1/slices/{id}/activate"), "");
    Ok(self::ask(socket, duration, 200, Duration::ZERO, &activate))
}

/// Asks the same from so many threads, each so often at most; says how often it was answered.
fn ask(socket: &Path, duration: Duration, threads: usize, each: Duration, message: &[u8]) -> String {
    let (done, refused, broken) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut next = begin;
                while begin.elapsed() < duration {
                    let outcome = match exchange(socket, message) {
                        Some((200, _)) => &done,
                        Some(_) => &refused,
                        None => &broken,
                    };
                    outcome.fetch_add(1, Relaxed);
                    next += each;
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            });
        }
    });
    let of = |count: &AtomicU64| count.load(Relaxed);
    format!(
        "served {}, refused {}, closed {}",
        of(&done),
        of(&refused),
        of(&broken)
    )
}

/// One question and its answer: the status and the body. Nothing where the connection was closed, or nothing came.
pub fn exchange(socket: &Path, message: &[u8]) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    stream.write_all(message).ok()?;
    let mut heard = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        let text = String::from_utf8_lossy(&heard);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                let status = head.split(' ').nth(1)?.parse().ok()?;
                return Some((status, body.to_owned()));
            }
        }
        match stream.read(&mut part) {
            Ok(bytes @ 1..) => heard.extend_from_slice(&part[..bytes]),
            _ => return None,
        }
    }
}
