//! Attacks by numbers.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::http;

/// As many descriptors as this process may have.
fn raise() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _as_is = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}

/// Opens `count` connections, says `text` on each, and keeps them. What is refused is tried again: who is turned away
/// comes back.
pub fn connections(count: usize, text: &str) -> anyhow::Result<()> {
    raise();
    let address = SocketAddrUnix::new(http::run().join("agent.sock"))?;
    let one = || -> anyhow::Result<UnixStream> {
        let socket: OwnedFd = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_millis(50)))?;
        connect(&socket, &address)?;
        let mut stream = UnixStream::from(socket);
        stream.write_all(text.as_bytes())?;
        Ok(stream)
    };
    let mut held = Vec::new();
    let mut refused = 0;
    while held.len() + refused < count && refused < 200 {
        match one() {
            Ok(stream) => held.push(stream),
            Err(_) => refused += 1,
        }
    }
    println!("held {}", held.len());
    loop {
        // Those that the agent has closed are opened again.
        for place in &mut held {
            if place.write_all(b"x").is_err()
                && let Ok(again) = one()
            {
                *place = again;
            }
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Asks for `count` places in the queue, with a command of `bytes` each, and stays.
pub fn queue(count: usize, bytes: usize) -> anyhow::Result<()> {
    let body = json!({
        "ask": { "request": { "memory": { "bytes": 60_u64 << 30 } }, "command": ["x".repeat(bytes)] },
        "patience_ms": 1,
    })
    .to_string();
    let mut given = 0;
    for _ in 0..count {
        if http::request("POST", "/v1/queue", &body).is_ok_and(|(status, _)| status < 300) {
            given += 1;
        }
    }
    println!("given {given}");
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Makes `count` requests.
pub fn requests(count: usize, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
    let mut answered = 0;
    for _ in 0..count {
        if http::request(method, path, body).is_ok() {
            answered += 1;
        }
    }
    println!("answered {answered}");
    Ok(())
}

/// Has a lasting slice that goes with this process, and stays.
pub fn attend(name: &str) -> anyhow::Result<()> {
    let body = json!({
        "request": { "name": name, "memory": { "bytes": 1_u64 << 30 } },
        "command": [], "lasting": true, "attended": true,
    });
    let (status, text) = http::request("POST", "/v1/slices", &body.to_string())?;
    anyhow::ensure!(status < 300, "{status} {text}");
    println!("attends");
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Keeps so many silent connections to a socket, and opens another for each that is closed, for ever. Says when it has them.
pub fn silent(socket: &Path, count: usize) -> anyhow::Result<()> {
    let mut held: VecDeque<UnixStream> = VecDeque::new();
    let mut said = false;
    loop {
        // A full queue is waited for: that is where the others wait too.
        if let Ok(stream) = UnixStream::connect(socket) {
            held.push_back(stream);
        }
        if held.len() > count {
            held.pop_front();
            if !said {
                println!("{count} silent");
                said = true;
            }
        }
    }
}
