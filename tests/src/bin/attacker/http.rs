//! Requests to the agent, as bytes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

/// The run directory, as the environment has it.
pub fn run() -> PathBuf {
    std::env::var_os("DIVVY_RUN_DIR").map_or_else(PathBuf::new, PathBuf::from)
}

/// A connection to the agent.
pub fn connect() -> anyhow::Result<UnixStream> {
    let stream = UnixStream::connect(run().join("agent.sock")).context("Cannot connect to the agent")?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// One request over a connection of its own: status and body.
pub fn request(method: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    over(&connect()?, method, path, body)
}

/// One request over this connection, which ends with it.
pub fn over(mut stream: &UnixStream, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    stream.write_all(text(method, path, body).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("No head in the answer")?;
    let status = head.split(' ').nth(1).context("No status in the answer")?;
    Ok((status.parse()?, body.to_owned()))
}

/// The request's bytes.
pub fn text(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: divvy\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Asks for a slice of `bytes` whose page server is this process; its id.
pub fn slice(bytes: u64) -> anyhow::Result<String> {
    let body = json!({ "request": { "memory": { "bytes": bytes } }, "command": ["attacker"] });
    let (status, text) = request("POST", "/v1/slices", &body.to_string())?;
    anyhow::ensure!(status == 200 || status == 201, "{status} {text}");
    let created: Value = serde_json::from_str(&text)?;
    let id = created["slice"]["id"]
        .as_str()
        .context("No slice in the answer")?;
    Ok(id.to_owned())
}
