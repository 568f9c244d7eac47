//! Names that belong to no user until one takes them.

use std::fs;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

/// Takes the name by which an agent owns a device, and keeps it.
pub fn squat(uuid: &str) -> anyhow::Result<()> {
    let address = SocketAddr::from_abstract_name(format!("divvy/device/{uuid}"))?;
    let held = UnixListener::bind_addr(&address);
    println!("{}", if held.is_ok() { "squats" } else { "refused" });
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Answers in an agent's place, in a folder where another user looks for hers. Says who came.
pub fn impostor(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let socket = folder.join("agent.sock");
    let listener = UnixListener::bind(&socket)?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
    println!("listens");
    for mut stream in listener.incoming().map_while(Result::ok) {
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut request = [0; 1024];
        let count = stream.read(&mut request).unwrap_or(0);
        let first = String::from_utf8_lossy(&request[..count]);
        // A process that only checks whose socket it is, and leaves, has not been deceived.
        if count == 0 {
            continue;
        }
        println!("asked {}", first.lines().next().unwrap_or_default());
        let body = r#"{"apiVersion":"divvy/v1","kind":"SliceList","items":[],"unmanaged":[]}"#;
        let _answered = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
    }
    Ok(())
}
