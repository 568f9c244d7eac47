//! A page server that does not do what page servers do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use divvy_ledger::attach::{Sockets, fetch};
use divvy_ledger::{GRANT_BYTES, Ledger};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::sockopt::socket_acceptconn;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};

use crate::{http, wire};

const MIB: u64 = 1 << 20;

/// Asks for a slice, and leads the agent, which comes to hand its pages over, to another slice's page server. Where it
/// may put no link there it waits for one: the scenario puts it there as root.
pub fn redirect(other: &Path) -> anyhow::Result<()> {
    let id = http::slice(300 * MIB)?;
    let folder = http::run().join("slices").join(&id);
    for name in ["attach.sock", "control.sock"] {
        let place = folder.join(name);
        match symlink(other, &place) {
            Ok(()) => println!("{name} linked"),
            Err(error) => println!("{name} not linked: {error}"),
        }
    }
    println!("{}", folder.display());
    let stands = || fs::read_link(folder.join("control.sock")).is_ok_and(|to| to == other);
    let begin = Instant::now();
    while !stands() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, text) = http::request("POST", &format!("/v1/slices/{id}/activate"), "")?;
    println!("stands {}", stands());
    println!("activate: {status} {text}");
    Ok(())
}

/// The sockets of a slice whose page server this process is, as a `divvy run` fetches them.
fn sockets(id: &str) -> anyhow::Result<Sockets> {
    let number = u32::from_str_radix(id, 16).context("The slice's id is no number")?;
    Ok(fetch(&http::run().join("keep.sock"), number)?)
}

/// Asks for a slice, and hands the agent memory that shrinks and is sealed while it looks at it, until it has looked so often
/// or the time is over.
pub fn fault(looks: u64, seconds: u64) -> anyhow::Result<()> {
    let id = http::slice(300 * MIB)?;
    let sockets = sockets(&id)?;
    let looked = Arc::new(AtomicU64::new(0));
    let count = looked.clone();
    std::thread::spawn(move || {
        // How soon the look comes to its second step depends on how the agent was built.
        let mut pauses = [10, 60].into_iter().cycle().map(Duration::from_millis);
        for stream in sockets.control.incoming().map_while(Result::ok) {
            match answer(stream.as_fd(), &mut pauses) {
                Ok(true) => drop(count.fetch_add(1, Ordering::Relaxed)),
                Ok(false) => {}
                Err(error) => println!("{error:#}"),
            }
        }
    });
    let begin = Instant::now();
    let (mut tries, mut last) = (0_u64, (0, String::new()));
    while looked.load(Ordering::Relaxed) < looks && begin.elapsed() < Duration::from_secs(seconds) {
        tries += 1;
        match http::request("POST", &format!("/v1/slices/{id}/activate"), "") {
            Ok(answer) => last = answer,
            Err(_) => break,
        }
    }
    println!("{tries} tries, the last answer {} {}", last.0, last.1);
    println!("looks {}", looked.load(Ordering::Relaxed));
    Ok(())
}

/// Answers the agent; says whether it was handed memory to look at.
fn answer(
    stream: std::os::fd::BorrowedFd<'_>,
    pauses: &mut impl Iterator<Item = Duration>,
) -> anyhow::Result<bool> {
    let (request, _) = wire::receive(stream)?;
    if wire::code(&request) != wire::RECALL {
        wire::send(stream, &wire::message(wire::UNFIT), &[])?;
        return Ok(false);
    }
    let grant = memfd_create("grant", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&grant, GRANT_BYTES as u64)?;
    let ledger = Ledger::create()?.share()?;
    wire::send(
        stream,
        &wire::message(wire::DONE),
        &[grant.as_fd(), ledger.as_fd()],
    )?;
    // Between size and seals, both of which the scenario makes last.
    std::thread::sleep(pauses.next().unwrap_or_default());
    ftruncate(&grant, 0)?;
    fcntl_add_seals(&grant, SealFlags::SHRINK | SealFlags::FUTURE_WRITE)?;
    Ok(true)
}

/// Runs a program in a slice, stops the `divvy run` that keeps it, and listens in its place: it is this user's process, and
/// so are its sockets. Until the file `go` is there it is silent; then it hands out memory that shrinks after so many milliseconds. It is asked once.
pub fn steal(name: &str, pause: u64) -> anyhow::Result<()> {
    let divvy = std::env::current_exe()?.with_file_name("divvy");
    let mut child = Command::new(divvy)
        .args([
            "run",
            "--name",
            name,
            "--memory",
            "300MiB",
            "--",
            "/bin/sh",
            "-c",
            "echo runs; sleep 600",
        ])
        .stdout(Stdio::piped())
        .spawn()?;
    let number = child.id();
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("Standard output is piped")?).read_line(&mut line)?;
    let pid = Pid::from_raw(number.try_into()?).context("A process has a number")?;
    kill_process(pid, Signal::STOP)?;
    let pinned = pidfd_open(pid, PidfdFlags::empty())?;
    let mut stolen = 0;
    for number in 3..256 {
        let Ok(socket) = pidfd_getfd(&pinned, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        if !socket_acceptconn(&socket).unwrap_or(false) {
            continue;
        }
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(false)?;
        stolen += 1;
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            let mut pauses = std::iter::repeat(Duration::from_millis(pause));
            for stream in listener.incoming().map_while(Result::ok) {
                match Path::new("go").exists() {
                    true => {
                        if answer(stream.as_fd(), &mut pauses).unwrap_or(false) {
                            println!("looked at");
                        }
                    }
                    // It is slow, so it will be asked again.
                    false => silent.push(stream),
                }
            }
        });
    }
    println!("stole {stolen}");
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Asks for a slice, accepts no connection of the agent's, and has it try `count` times at once, for as long as it is let.
pub fn stuck(count: usize) -> anyhow::Result<()> {
    let id = http::slice(300 * MIB)?;
    let _silent = sockets(&id)?;
    let path = format!("/v1/slices/{id}/activate");
    println!("begins");
    let said = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_secs(20) {
                    let answer = http::request("POST", &path, "");
                    // The first that the agent gave up waiting for; not one for which there was no space.
                    if let Ok((status, text)) = answer
                        && status != 429
                        && !said.swap(true, Ordering::Relaxed)
                    {
                        println!("{status} {text}");
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
    });
    Ok(())
}
