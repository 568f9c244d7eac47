//! What the ring costs. Beside each figure stands what the machine itself needs, in the same run: a bare word that two
//! processes spin on, a bare futex that two sleepers wake each other by, and memcpy.
//!
//! The two sides are two processes, each pinned to a processor.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use divvy_bench::statistics::median;
use divvy_ring::doorbell::{Doorbell, Futex};
use divvy_ring::{Backing, Client, Limits, Peer, Region, Shape};
use rustix::thread::CpuSet;

use crate::Args;

/// One figure: the median of all rounds, and the best round.
#[derive(Clone, Copy)]
struct Reading {
    median: f64,
    best: f64,
}

fn read(rounds: usize, mut one: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<Reading> {
    // The first warms caches and wakes the other process.
    one()?;
    let mut values = (0..rounds).map(|_| one()).collect::<anyhow::Result<Vec<_>>>()?;
    let median = median(&mut values);
    let best = values.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Reading { median, best })
}

fn show(name: &str, reading: Reading) {
    println!("{name:<58}{:>12.1} ns{:>12.1} ns", reading.median, reading.best);
}

/// Which side of a measurement a process is: each has a processor of its own, where there are two.
#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
}

/// Keeps this process on its side's processor. `allowed` are those that the bench was started with.
fn pin(side: Side, allowed: &CpuSet) {
    let mut processors = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    let first = processors.next().unwrap_or(0);
    let mut set = CpuSet::new();
    set.set(match side {
        Side::Client => first,
        Side::Server => processors.next().unwrap_or(first),
    });
    // Where it is refused the figures are of wherever the process runs.
    let _pinned = rustix::thread::sched_setaffinity(None, &set);
}

/// A process that does `body` until it is killed.
struct Other(rustix::process::Pid);

impl Other {
    fn start(allowed: &CpuSet, body: impl FnOnce()) -> anyhow::Result<Self> {
        // SAFETY: this process has one thread, so the child finds no lock held.
        let number = unsafe { libc::fork() };
        if number < 0 {
            anyhow::bail!("fork: {}", std::io::Error::last_os_error());
        }
        let Some(pid) = rustix::process::Pid::from_raw(number) else {
            pin(Side::Server, allowed);
            body();
            // SAFETY: it ends this process, without the parent's destructors.
            unsafe { libc::_exit(0) }
        };
        Ok(Self(pid))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ended = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
        let _reaped = rustix::process::waitpid(Some(self.0), rustix::process::WaitOptions::empty());
    }
}

/// Two words that both processes have, on lines of their own.
fn words() -> anyhow::Result<[&'static AtomicU32; 2]> {
    use rustix::mm::{MapFlags, ProtFlags};
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping of zeros, which is never unmapped.
    unsafe {
        let page = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4096, flags, MapFlags::SHARED)?;
        let first = page.cast::<AtomicU32>();
        Ok([&*first, &*first.add(64)])
    }
}

/// The floor: a word goes to the other process and one comes back, without a message.
fn bare(args: &Args, sleeping: bool) -> anyhow::Result<Reading> {
    let [to, from] = words()?;
    let wait = move |word: &AtomicU32, seen: u32| {
        while word.load(Ordering::Acquire) == seen {
            match sleeping {
                true => Futex.wait(word, seen, Duration::from_millis(100)),
                false => std::hint::spin_loop(),
            }
        }
    };
    let post = move |word: &AtomicU32, value: u32| {
        word.store(value, Ordering::Release);
        if sleeping {
            Futex.ring(word);
        }
    };
    let _other = Other::start(&args.allowed, || {
        for value in 1.. {
            wait(to, value - 1);
            post(from, value);
        }
    })?;
    let mut value = 0;
    read(args.rounds, || {
        let began = Instant::now();
        for _ in 0..args.calls {
            value += 1;
            post(to, value);
            wait(from, value - 1);
        }
        Ok(began.elapsed().as_nanos() as f64 / f64::from(args.calls))
    })
}

/// A server in another process, which answers a message with nothing, and a client of it.
fn connect(args: &Args, shape: &Shape, spin: Duration) -> anyhow::Result<(Other, Client<Futex>)> {
    let limits = Limits {
        spin,
        ..Limits::default()
    };
    let (region, fd) = Region::create(shape)?;
    let other = Other::start(&args.allowed, || {
        let Ok(region) = Region::attach(fd.as_fd(), Backing::Sealed) else {
            return;
        };
        let Some(mut server) = region.server(0, Peer::new(Futex, || true).with(limits)) else {
            return;
        };
        server.serve(|message, _| {
            black_box(message);
        });
    })?;
    let client = region.client(Peer::new(Futex, || true).with(limits))?;
    Ok((other, client))
}

/// Long enough that no side sleeps while a round goes on.
const ALWAYS: Duration = Duration::from_secs(1);

fn round_trip(args: &Args, spin: Duration) -> anyhow::Result<Reading> {
    let (_other, mut client) = connect(
        args,
        &Shape {
            channels: 1,
            ..Shape::default()
        },
        spin,
    )?;
    let mut reply = Vec::new();
    read(args.rounds, || {
        let began = Instant::now();
        for _ in 0..args.calls {
            client.call(&[], &mut reply)?;
        }
        Ok(began.elapsed().as_nanos() as f64 / f64::from(args.calls))
    })
}

/// Messages of `bytes` without a reply, into a ring that has room for all of them.
fn submit(args: &Args, bytes: usize) -> anyhow::Result<Reading> {
    let count = args.calls.min(2000);
    let (_other, mut client) = connect(
        args,
        &Shape {
            channels: 1,
            request_bytes: 1 << 20,
            ..Shape::default()
        },
        ALWAYS,
    )?;
    let (message, mut reply) = (vec![7; bytes], Vec::new());
    read(args.rounds, || {
        let began = Instant::now();
        for _ in 0..count {
            client.submit(black_box(&message))?;
        }
        let took = began.elapsed().as_nanos() as f64 / f64::from(count);
        // The next round finds an empty ring.
        client.call(&[], &mut reply)?;
        Ok(took)
    })
}

/// Nanoseconds for one message of `bytes`, in a stream of them through a ring of `ring` bytes.
fn stream(args: &Args, bytes: usize, ring: u32) -> anyhow::Result<Reading> {
    let shape = Shape {
        channels: 1,
        request_bytes: ring,
        ..Shape::default()
    };
    let (_other, mut client) = connect(args, &shape, ALWAYS)?;
    let count = STREAM / bytes;
    let (message, mut reply) = (vec![7; bytes], Vec::new());
    read(args.rounds.min(15), || {
        let began = Instant::now();
        for _ in 0..count {
            client.submit(black_box(&message))?;
        }
        client.call(&[], &mut reply)?;
        Ok(began.elapsed().as_nanos() as f64 / count as f64)
    })
}

/// Nanoseconds for a copy of `bytes` by memcpy, from one buffer of this process into another.
fn copy(args: &Args, bytes: usize) -> anyhow::Result<Reading> {
    let count = STREAM / bytes;
    let (from, mut into) = (vec![7_u8; bytes], vec![0_u8; bytes]);
    read(args.rounds.min(15), || {
        let began = Instant::now();
        for _ in 0..count {
            black_box(&mut into).copy_from_slice(black_box(&from));
        }
        Ok(began.elapsed().as_nanos() as f64 / count as f64)
    })
}

/// Bytes of one round of a stream: more than the caches hold.
const STREAM: usize = 64 << 20;

fn bandwidth(args: &Args) -> anyhow::Result<()> {
    let rate = |bytes: usize, reading: Reading| (bytes as f64 / reading.median, bytes as f64 / reading.best);
    let (far, far_best) = rate(STREAM, copy(args, STREAM)?);
    println!("memcpy beyond the caches {far:>31.1} GB/s{far_best:>11.1} GB/s");
    for (name, bytes) in [("64 KiB", 64 << 10), ("1 MiB", 1 << 20)] {
        let (near, near_best) = rate(bytes, copy(args, bytes)?);
        println!("memcpy of {name}, in the cache {near:>27.1} GB/s{near_best:>11.1} GB/s");
        for (ring_name, ring) in [("256 KiB", 1 << 18), ("4 MiB", 1 << 22)] {
            let (through, best) = rate(bytes, stream(args, bytes, ring)?);
            println!(
                "messages of {name} through a ring of {ring_name:<8}{through:>12.1} GB/s{best:>11.1} GB/s   {:.2} and {:.2} of memcpy",
                best / far_best,
                best / near_best,
            );
        }
    }
    Ok(())
}

/// All figures of the ring.
pub fn run(args: &Args) -> anyhow::Result<()> {
    pin(Side::Client, &args.allowed);
    println!("{:<58}{:>15}{:>15}", "", "median", "best round");
    show("a bare word and back, both sides spinning", bare(args, false)?);
    show(
        "call of an empty message, both sides spinning",
        round_trip(args, ALWAYS)?,
    );
    show("a bare futex and back, both sides sleeping", bare(args, true)?);
    show(
        "call of an empty message, both sides sleeping",
        round_trip(args, Duration::ZERO)?,
    );
    for bytes in [0, 64, 256] {
        show(&format!("submit of {bytes} bytes"), submit(args, bytes)?);
    }
    bandwidth(args)
}
