//! Attacks by the pages of a slice.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use divvy_ledger::{
    Backing, GRANT_BYTES, Grant, GrantSpec, GrantView, LEDGER_BYTES, Ledger, Slot, SlotOwner,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::wire;

/// Prints the limit that a program of the slice finds, in bytes.
pub fn limit(socket: &Path) -> anyhow::Result<()> {
    let (status, fds) = wire::ask(socket, wire::ATTACH, &[])?;
    let grant = fds
        .first()
        .with_context(|| format!("No pages came: status {status}"))?;
    println!("{}", GrantView::map(grant.as_fd())?.memory_limit_bytes());
    Ok(())
}

/// Brings the page server a grant of its own making, of `bytes`, as only the agent may.
pub fn deliver(socket: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut grant = Grant::create(&GrantSpec {
        memory_limit_bytes: bytes,
        slice_id: "attacker",
        slice_name: "attacker",
        ..GrantSpec::default()
    })?;
    // Newer than what a slice has whose agent was restarted some times.
    for _ in 0..50 {
        grant = Grant::succeed(&GrantView::map(grant.share()?.as_fd())?)?;
    }
    let ledger = Ledger::create()?;
    let (grant, ledger) = (grant.share()?, ledger.share()?);
    for kind in [wire::DELIVER, wire::RECALL] {
        let brought = match kind {
            wire::DELIVER => vec![grant.as_fd(), ledger.as_fd()],
            _ => Vec::new(),
        };
        match wire::ask(socket, kind, &brought) {
            Ok((status, fds)) => println!("kind {kind}: status {status}, {} descriptors", fds.len()),
            Err(error) => println!("kind {kind}: {error:#}"),
        }
    }
    Ok(())
}

/// Takes `count` places in the slice's ledger, each in the name of one of these processes of the host, and stays.
pub fn forge(socket: &Path, count: usize, pids: &[&str]) -> anyhow::Result<()> {
    let mut held = Vec::new();
    for place in 0..count {
        let host_pid = match pids {
            [] => 100_000 + place as u32,
            pids => crate::number(pids[place % pids.len()])?,
        };
        let (_, mut fds) = wire::ask(socket, wire::ATTACH, &[])?;
        let ledger = fds.pop().context("No pages came")?;
        held.push(Slot::claim(ledger, Backing::Sealed, SlotOwner { host_pid })?);
    }
    println!("forged {}", held.len());
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Hands this very process memory that shrinks and is sealed while it is looked at, as a hostile page server hands it
/// to the agent. If the code that looks asks for the size before the seals, this process ends by a signal.
pub fn race(rounds: u64, seconds: u64) -> anyhow::Result<()> {
    /// Longer than a look takes, in nanoseconds; a prime steps through it.
    const SPAN: u64 = 20_000;
    let begin = Instant::now();
    let (over, looks, shrunk) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let next: Mutex<Option<OwnedFd>> = Mutex::new(None);
    let mut done = 0;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        // Never asleep: waking up takes longer than the look.
        scope.spawn(|| {
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                let look = looks.load(Ordering::Acquire);
                if look == seen {
                    std::hint::spin_loop();
                    continue;
                }
                seen = look;
                let began = Instant::now();
                let file = next.lock().unwrap_or_else(PoisonError::into_inner).take();
                let pause = Duration::from_nanos(look * 137 % SPAN);
                while began.elapsed() < pause {
                    std::hint::spin_loop();
                }
                if let Some(file) = file {
                    if ftruncate(&file, 0).is_ok() {
                        shrunk.fetch_add(1, Ordering::Relaxed);
                    }
                    let _sealed = fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
                }
            }
        });
        // Where two processors are busy the window is missed for a while: not less than this.
        let least = Duration::from_secs(3);
        while (done < rounds || begin.elapsed() < least) && begin.elapsed() < Duration::from_secs(seconds) {
            for (bytes, is_grant) in [(GRANT_BYTES, true), (LEDGER_BYTES, false)] {
                let file = memfd_create("page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
                ftruncate(&file, bytes as u64)?;
                *next.lock().unwrap_or_else(PoisonError::into_inner) = Some(file.try_clone()?);
                looks.fetch_add(1, Ordering::Release);
                match is_grant {
                    true => drop(GrantView::map(file.as_fd())),
                    false => drop(Ledger::open(file, Backing::Sealed)),
                }
            }
            done += 1;
        }
        over.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    println!("{done} rounds, shrunk {}", shrunk.load(Ordering::Relaxed));
    Ok(())
}
