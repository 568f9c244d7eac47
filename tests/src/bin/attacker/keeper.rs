//! A keeper that does not keep to what keepers do.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use divvy_ledger::{GRANT_BYTES, Ledger};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::{http, wire};

const MIB: u64 = 1 << 20;

/// Where a keeper of the slice listened in the layout in which its folder was the user's.
fn socket(id: &str) -> PathBuf {
    http::run().join("slices").join(id).join("attach.sock")
}

/// Asks for a slice, and leads the agent, which comes to hand its pages over, to another slice's keeper.
pub fn redirect(other: &Path) -> anyhow::Result<()> {
    let id = http::slice(300 * MIB)?;
    match symlink(other, socket(&id)) {
        Ok(()) => println!("linked"),
        Err(error) => println!("no link: {error}"),
    }
    let (status, _) = http::request("POST", &format!("/v1/slices/{id}/activate"), "")?;
    println!("activate: {status}");
    Ok(())
}

/// Asks for a slice, and hands the agent memory that shrinks and is sealed while it looks at it.
pub fn fault(seconds: u64) -> anyhow::Result<()> {
    let id = http::slice(300 * MIB)?;
    let listener = match UnixListener::bind(socket(&id)) {
        Ok(listener) => listener,
        Err(error) => {
            println!("no socket: {error}");
            return Ok(());
        }
    };
    std::thread::spawn(move || {
        // How soon the look comes to its second step depends on how the agent was built.
        let pauses = [10, 60].into_iter().cycle().map(Duration::from_millis);
        let mut pauses = pauses.flat_map(|pause| [pause; 2]);
        for stream in listener.incoming().map_while(Result::ok) {
            let pause = pauses.next().unwrap_or_default();
            if let Err(error) = answer(stream.as_fd(), pause) {
                println!("{error:#}");
            }
        }
    });
    let begin = Instant::now();
    let (mut tries, mut last) = (0_u64, (0, String::new()));
    while begin.elapsed() < Duration::from_secs(seconds) {
        tries += 1;
        match http::request("POST", &format!("/v1/slices/{id}/activate"), "") {
            Ok(answer) => last = answer,
            Err(_) => break,
        }
    }
    println!("{tries} tries, the last answer {} {}", last.0, last.1);
    Ok(())
}

fn answer(stream: std::os::fd::BorrowedFd<'_>, pause: Duration) -> anyhow::Result<()> {
    let (request, _) = wire::receive(stream)?;
    if wire::code(&request) != wire::RECALL {
        return wire::send(stream, &wire::message(wire::UNFIT), &[]);
    }
    let grant = memfd_create("grant", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&grant, GRANT_BYTES as u64)?;
    let ledger = Ledger::create()?.share()?;
    wire::send(stream, &wire::message(wire::DONE), &[grant.as_fd(), ledger.as_fd()])?;
    // Between size and seals, both of which the story makes last.
    std::thread::sleep(pause);
    ftruncate(&grant, 0)?;
    fcntl_add_seals(&grant, SealFlags::SHRINK | SealFlags::FUTURE_WRITE)?;
    Ok(())
}

/// Asks for a slice, accepts no connection of the agent's, and has it try `count` times at once, for as long as it is let.
pub fn stuck(count: usize) -> anyhow::Result<()> {
    let id = http::slice(300 * MIB)?;
    // In the layout that has the agent listen for us the socket is there, and nobody accepts either.
    let _silent = UnixListener::bind(socket(&id));
    let path = format!("/v1/slices/{id}/activate");
    println!("begins");
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_secs(20) {
                    let _refused = http::request("POST", &path, "");
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
    });
    let _gone = fs::remove_file(socket(&id));
    Ok(())
}
