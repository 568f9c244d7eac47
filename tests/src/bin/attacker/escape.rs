//! Out of one's slice: a process that is dead speaks.

use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::json;

use crate::{http, wire};

/// Connects to the agent, hands the connection to the parent, and ends.
pub fn pass_connection() -> anyhow::Result<()> {
    let connection = http::connect()?;
    wire::send(stdin().as_fd(), b"here", &[connection.as_fd()])
}

/// A connection to the agent whose maker is dead, and reaped.
fn of_the_dead() -> anyhow::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("pass-connection")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()?;
    let (_, fds) = wire::receive(ours.as_fd())?;
    child.wait()?;
    let connection = fds.into_iter().next().context("No connection came")?;
    Ok(connection.into())
}

/// From inside a slice: asks for more of it, and for another one outside, over such connections.
pub fn by_the_dead(rounds: usize) -> anyhow::Result<()> {
    let slice = std::env::var("DIVVY_SLICE").context("Not in a slice")?;
    let id = slice.rsplit('/').nth(1).context("DIVVY_SLICE has no folder")?;
    let (status, _) = http::request("PATCH", &format!("/v1/slices/{id}"), &more())?;
    println!("from inside: {status}");
    let mut last = (0, 0);
    for round in 0..rounds {
        // An agent that tells such a caller nothing but hangs up has refused it too.
        let status = |answer: anyhow::Result<(u16, String)>| answer.map_or(0, |(status, _)| status);
        let resized = http::over(&of_the_dead()?, "PATCH", &format!("/v1/slices/{id}"), &more());
        let outside = json!({
            "request": { "name": format!("outside-{round}"), "memory": { "bytes": 5_u64 << 30 } },
            "command": [], "lasting": true,
        });
        let made = http::over(&of_the_dead()?, "POST", "/v1/slices", &outside.to_string());
        last = (status(resized), status(made));
    }
    println!("by the dead: {} {}", last.0, last.1);
    // The slice is there to be looked at until the story has done so.
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(())
}

fn more() -> String {
    json!({ "memory": { "bytes": 10_u64 << 30 } }).to_string()
}
