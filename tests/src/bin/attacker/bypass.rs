//! A process that is dead speaks: a child connects and ends, and its parent has the connection.

use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use crate::{http, wire};

/// Connects to a socket so often, hands the connections to the parent, and ends.
pub fn pass_connections(socket: &Path, count: usize) -> anyhow::Result<()> {
    for _ in 0..count {
        let connection = UnixStream::connect(socket)?;
        wire::send(
            stdin().as_fd(),
            &wire::message(wire::ATTACH),
            &[connection.as_fd()],
        )?;
    }
    Ok(())
}

/// Connections whose maker is dead, and reaped.
fn many_of_the_dead(socket: &Path, count: usize) -> anyhow::Result<Vec<UnixStream>> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("pass-connections")
        .arg(socket)
        .arg(count.to_string())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()?;
    let mut connections = Vec::new();
    while connections.len() < count
        && let Ok((_, fds)) = wire::receive(ours.as_fd())
    {
        connections.extend(fds.into_iter().map(UnixStream::from));
    }
    child.wait()?;
    for connection in &connections {
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    }
    Ok(connections)
}

/// A connection whose maker is dead, and reaped.
fn of_the_dead(socket: &Path) -> anyhow::Result<UnixStream> {
    let one = many_of_the_dead(socket, 1)?.pop();
    one.context("No connection came")
}

/// From inside a slice: asks for more of it, and for another one outside, over such connections.
pub fn by_the_dead(rounds: usize, seconds: u64) -> anyhow::Result<()> {
    let slice = std::env::var("DIVVY_SLICE").context("Not in a slice")?;
    let id = slice.rsplit('/').nth(1).context("DIVVY_SLICE has no folder")?;
    let agent = http::run().join("agent.sock");
    let more = json!({ "memory": { "bytes": 10_u64 << 30 } }).to_string();
    let (status, _) = http::request("PATCH", &format!("/v1/slices/{id}"), &more)?;
    println!("from inside: {status}");
    // An agent that tells such a caller nothing but hangs up has refused it too.
    let status = |answer: anyhow::Result<(u16, String)>| answer.map_or(0, |(status, _)| status);
    let (mut done, mut last, begin) = (0, (0, 0), Instant::now());
    while done < rounds && begin.elapsed() < Duration::from_secs(seconds) {
        let resized = of_the_dead(&agent)
            .and_then(|dead| http::over(&dead, "PATCH", &format!("/v1/slices/{id}"), &more));
        let outside = json!({
            "request": { "name": format!("outside-{done}"), "memory": { "bytes": 5_u64 << 30 } },
            "command": [], "lasting": true,
        });
        let made = of_the_dead(&agent)
            .and_then(|dead| http::over(&dead, "POST", "/v1/slices", &outside.to_string()));
        last = (status(resized), status(made));
        done += 1;
    }
    println!(
        "by the dead: {done} rounds, the last answers {} {}",
        last.0, last.1
    );
    // The slice stays until the scenario has looked at it.
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(())
}

/// Attaches to a slice over such connections, and in the half of the rounds hangs up before the answer.
pub fn attach_by_the_dead(socket: &Path, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    /// Fewer than a page server serves at once.
    const AT_ONCE: usize = 32;
    let (mut done, mut given, begin) = (0, 0, Instant::now());
    while done < rounds && begin.elapsed() < Duration::from_secs(seconds) {
        for dead in many_of_the_dead(socket, AT_ONCE)? {
            let _sent = wire::send(dead.as_fd(), &wire::message(wire::ATTACH), &[]);
            if done % 2 == 0 && wire::receive(dead.as_fd()).is_ok_and(|(_, fds)| fds.len() == 2) {
                given += 1;
            }
            done += 1;
        }
    }
    println!("{done} rounds, pages given in {given}");
    Ok(())
}
