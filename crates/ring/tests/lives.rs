//! Processes and threads that die, fork and come back while they have a channel.

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ring::doorbell::Futex;
use divvy_ring::layout::ChannelWords;
use divvy_ring::owner::Term;
use divvy_ring::{Backing, Client, Limits, Peer, Region, RingError, Shape};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use support::{Dice, SMALL, client, held, lives, regions, server, soon};

/// A process that runs `body`, and a descriptor that tells of its end.
fn child(body: impl FnOnce()) -> (Pid, OwnedFd) {
    // SAFETY: the child runs only code of this file and the crate. The one lock that another thread may hold is the
    // allocator's, which survives a fork. The child ends without running the parent's destructors.
    let number = unsafe { libc::fork() };
    assert!(number >= 0, "fork");
    let Some(pid) = Pid::from_raw(number) else {
        let ended = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: it ends this process.
        unsafe { libc::_exit(i32::from(ended.is_err())) }
    };
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("our child");
    (pid, pidfd)
}

fn reap(pid: Pid) -> Option<i32> {
    let (_, status) = rustix::process::waitpid(Some(pid), WaitOptions::empty())
        .expect("our child")
        .expect("its end");
    status.exit_status()
}

/// A message's bytes follow from its number.
fn write_message(number: u64, message: &mut Vec<u8>) {
    message.clear();
    message.extend(number.to_ne_bytes());
    let mut dice = Dice(number + 1);
    let bytes = if dice.below(8) == 0 { 3000 } else { 60 };
    message.extend((0..dice.below(bytes)).map(|at| (number + at) as u8));
}

/// Calls and submits until an error.
fn converse(mut client: Client<Futex>) -> RingError {
    let (mut message, mut reply, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0.. {
        write_message(number, &mut message);
        let sent = match number % 3 {
            0 => client.call(&message, &mut reply),
            _ => client.submit(&message),
        };
        if let Err(error) = sent {
            return error;
        }
        if number % 3 == 0 {
            write_message(number + 1, &mut expected);
            assert_eq!(reply, expected);
        }
    }
    unreachable!("an error ends it")
}

/// What a server does with the messages of one [`converse`].
fn answer() -> impl FnMut(&[u8], &mut Vec<u8>) {
    let (mut number, mut expected) = (0, Vec::new());
    move |message, reply| {
        write_message(number, &mut expected);
        assert_eq!(message, expected, "whole messages, in order");
        number += 1;
        write_message(number, reply);
    }
}

fn peer_of(pidfd: OwnedFd, dice: &mut Dice) -> Peer<Futex> {
    Peer::new(Futex, move || lives(&pidfd)).with(Limits {
        spin: Duration::from_micros(dice.below(2) * 20),
        look: Duration::from_millis(1),
        ..soon()
    })
}

/// Other tests of this process hold a few descriptors and mappings meanwhile; each round's would be hundreds.
fn assert_nothing_left((descriptors, mappings): (usize, usize)) {
    let now = held();
    assert!(now.0 < descriptors + 100 && now.1 < mappings + 100, "{now:?}");
}

const ROUNDS: u64 = 500;

/// A wait ends at the next look. On a busy machine the thread waits for its processor as well.
const BOUND: Duration = Duration::from_secs(10);

#[test]
fn clients_that_are_killed_at_any_moment_leave_a_channel_for_the_next() {
    let before = held();
    let mut dice = Dice(11);
    let (mut handled, mut unused) = (0, 0);
    {
        let (region, fd) = Region::create(&SMALL).expect("a region");
        for round in 0..ROUNDS {
            let (pid, pidfd) = child(|| {
                let region = Region::attach(fd.as_fd(), Backing::Sealed).expect("the region");
                let limits = Limits {
                    spin: Duration::from_micros(round % 2 * 20),
                    ..soon()
                };
                // The channel is closed until this round's server has it.
                let client = loop {
                    match region.client(support::peer(limits)) {
                        Ok(client) => break client,
                        Err(error) => assert_eq!(error, RingError::NoChannel),
                    }
                    thread::yield_now();
                };
                converse(client);
            });
            let watched = pidfd.try_clone().expect("a copy");
            let mut server = region
                .server(0, peer_of(watched, &mut dice))
                .expect("it is not open");
            let lifetime = Duration::from_micros(dice.below(2500));
            let count = thread::scope(|scope| {
                let serving = scope.spawn(move || {
                    let (mut count, mut answer) = (0, answer());
                    let end = server.serve(|message, reply| {
                        count += 1;
                        answer(message, reply);
                    });
                    assert_eq!(end, RingError::Gone);
                    count
                });
                thread::sleep(lifetime);
                rustix::process::kill_process(pid, Signal::KILL).expect("our child");
                let killed = Instant::now();
                assert_eq!(reap(pid), None, "killed, not failed");
                let count = serving.join().expect("no panic");
                assert!(killed.elapsed() < BOUND);
                count
            });
            handled += count;
            unused += u64::from(count == 0);
        }
    }
    assert!(
        handled > ROUNDS && unused < ROUNDS,
        "{handled} messages; {unused} rounds without one"
    );
    assert_nothing_left(before);
}

#[test]
fn servers_that_are_killed_at_any_moment_release_their_clients() {
    let before = held();
    let mut dice = Dice(12);
    for _ in 0..ROUNDS {
        let (ours, fd) = Region::create(&SMALL).expect("a region");
        let (pid, pidfd) = child(|| {
            let region = Region::attach(fd.as_fd(), Backing::Sealed).expect("the region");
            server(&region, soon()).serve(answer());
        });
        let client = ours.client(peer_of(pidfd, &mut dice)).expect("it is free");
        let lifetime = Duration::from_micros(dice.below(2500));
        thread::scope(|scope| {
            let killer = scope.spawn(move || {
                thread::sleep(lifetime);
                rustix::process::kill_process(pid, Signal::KILL).expect("our child");
                let killed = Instant::now();
                assert_eq!(reap(pid), None, "killed, not failed");
                killed
            });
            assert_eq!(converse(client), RingError::Gone);
            assert!(killer.join().expect("no panic").elapsed() < BOUND);
        });
    }
    assert_nothing_left(before);
}

#[test]
fn a_forked_child_cannot_touch_the_rings() {
    let shape = Shape {
        channels: 2,
        data_bytes: 4096,
        ..SMALL
    };
    let (ours, theirs, _fd) = regions(&shape);
    let mut served = server(&ours, soon());
    let mut mine = client(&theirs, soon());
    let (data, _) = theirs.data();
    // SAFETY: the data area is mapped, and no other code of this test is at it.
    unsafe { data.as_ptr().write_volatile(77) };
    mine.submit(b"before").expect("room");
    let (pid, _pidfd) = child(|| {
        let mut reply = Vec::new();
        assert_eq!(mine.submit(b"x"), Err(RingError::Forked));
        assert_eq!(mine.call(b"x", &mut reply), Err(RingError::Forked));
        assert_eq!(served.serve_one(None, |_, _| ()), Err(RingError::Forked));
        served.reset();
        assert!(matches!(
            theirs.client(support::peer(soon())),
            Err(RingError::Forked)
        ));
        assert!(ours.server(1, support::peer(soon())).is_none());
        // Only the data area is left of either mapping.
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        let regions: Vec<_> = maps
            .lines()
            .filter(|line| line.contains("divvy-region"))
            .collect();
        for line in &regions {
            let (start, end) = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'))
                .expect("a range");
            let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).expect("an address"));
            assert_eq!(end - start, 4096, "{line}");
        }
        assert_eq!(regions.len(), 2);
        // SAFETY: it is mapped here too, as was just seen.
        assert_eq!(unsafe { data.as_ptr().read_volatile() }, 77);
        // SAFETY: dropped once, and not used after: the child ends without dropping them again.
        unsafe {
            drop(std::ptr::read(&raw const mine));
            drop(std::ptr::read(&raw const served));
        }
    });
    assert_eq!(reap(pid), Some(0));
    mine.submit(b"after").expect("room");
    for expected in [&b"before"[..], b"after"] {
        served
            .serve_one(None, |message, _| assert_eq!(message, expected))
            .expect("it is there");
    }
}

/// The last message comes between the server's last look at the ring and the news that the client is dead.
#[test]
fn what_a_client_sent_before_it_died_is_handled() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let asked = Arc::new(Barrier::new(2));
    let dead = Peer::new(Futex, {
        let asked = Arc::clone(&asked);
        move || {
            asked.wait();
            asked.wait();
            false
        }
    });
    let limits = Limits {
        look: Duration::from_nanos(1),
        ..soon()
    };
    let mut server = ours.server(0, dead.with(limits)).expect("a server");
    let serving = thread::spawn(move || server.serve_one(None, |message, _| assert_eq!(message, b"last")));
    let mut client = client(&theirs, soon());
    asked.wait();
    client.submit(b"last").expect("room");
    asked.wait();
    assert_eq!(serving.join().expect("no panic"), Ok(()));
}

#[test]
fn a_channel_of_a_thread_that_ended_without_a_word_is_given_back() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let mut server = server(&ours, soon());
    let thread = thread::spawn({
        let theirs = theirs.clone();
        move || {
            let mut lost = client(&theirs, soon());
            lost.submit(b"last").expect("room");
            // As a thread that ends by a raw system call: no destructor runs.
            std::mem::forget(lost);
        }
    });
    thread.join().expect("no panic");
    server
        .serve_one(None, |message, _| assert_eq!(message, b"last"))
        .expect("it is there");
    assert_eq!(
        server.serve_one(Some(Duration::ZERO), |_, _| ()),
        Err(RingError::TimedOut)
    );
    // The kernel may still count the thread for a moment.
    let began = Instant::now();
    while server.serve_one(Some(Duration::from_millis(1)), |_, _| ()) != Err(RingError::Gone) {
        assert!(matches!(
            theirs.client(support::peer(soon())),
            Err(RingError::NoChannel)
        ));
        assert!(began.elapsed() < BOUND);
    }
    server.reset();
    client(&theirs, soon()).submit(b"next").expect("room");
    server
        .serve_one(None, |message, _| assert_eq!(message, b"next"))
        .expect("it is there");
}

#[test]
fn a_channel_of_a_living_thread_is_not_given_back() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let mut server = server(&ours, soon());
    let mut mine = client(&theirs, soon());
    for _ in 0..10 {
        assert!(matches!(
            theirs.client(support::peer(soon())),
            Err(RingError::NoChannel)
        ));
    }
    mine.submit(b"still").expect("room");
    server
        .serve_one(None, |message, _| assert_eq!(message, b"still"))
        .expect("it is there");
}

/// As after the server has taken a suspended machine for a dead one.
#[test]
fn a_client_whose_channel_was_taken_back_stops() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let mut server = server(&ours, soon());
    let mut first = client(&theirs, soon());
    first.submit(b"first").expect("room");
    server.reset();
    let mut second = client(&theirs, soon());
    second.submit(b"second").expect("room");
    assert_eq!(first.submit(b"late"), Err(RingError::Gone));
    drop(first);
    second.submit(b"third").expect("room");
    for expected in [&b"second"[..], b"third"] {
        let handled = server.serve_one(None, |message, _| assert_eq!(message, expected));
        handled.expect("it is there");
    }
}

#[test]
fn more_threads_than_channels_take_turns() {
    const THREADS: u64 = 12;
    const CALLS: u64 = 40;
    let shape = Shape { channels: 3, ..SMALL };
    let (ours, theirs, _fd) = regions(&shape);
    let (done, handled) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for channel in 0..shape.channels {
            let (ours, done, handled) = (&ours, &done, &handled);
            scope.spawn(move || {
                let mut server = ours.server(channel, support::peer(soon())).expect("a server");
                assert!(
                    ours.server(channel, support::peer(soon())).is_none(),
                    "it is open"
                );
                while done.load(Ordering::Relaxed) < THREADS {
                    let served = server.serve_one(Some(Duration::from_millis(5)), |message, reply| {
                        handled.fetch_add(1, Ordering::Relaxed);
                        reply.extend(message.iter().rev());
                    });
                    match served {
                        Ok(()) | Err(RingError::TimedOut) => {}
                        Err(error) => {
                            assert_eq!(error, RingError::Gone);
                            server.reset();
                        }
                    }
                }
            });
        }
        for thread in 0..THREADS {
            let (theirs, done) = (&theirs, &done);
            scope.spawn(move || {
                for call in 0..CALLS {
                    let mut client = loop {
                        match theirs.client(support::peer(soon())) {
                            Ok(client) => break client,
                            Err(error) => assert_eq!(error, RingError::NoChannel),
                        }
                        thread::sleep(Duration::from_micros(100));
                    };
                    let (message, mut reply) = ([thread as u8, call as u8, 1], Vec::new());
                    client.call(&message, &mut reply).expect("a reply");
                    assert_eq!(reply, [1, call as u8, thread as u8]);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(handled.into_inner(), THREADS * CALLS);
}

#[test]
fn a_server_that_ends_releases_its_client_and_may_come_back() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let limits = Limits {
        look: Duration::from_secs(20),
        ..soon()
    };
    let first = server(&ours, limits);
    let claimed = Arc::new(Barrier::new(2));
    let waiting = thread::spawn({
        let (theirs, claimed) = (theirs.clone(), Arc::clone(&claimed));
        move || {
            let mut client = client(&theirs, limits);
            claimed.wait();
            client.call(b"?", &mut Vec::new())
        }
    });
    claimed.wait();
    // It makes no difference how far the call is.
    thread::yield_now();
    drop(first);
    let began = Instant::now();
    assert_eq!(waiting.join().expect("no panic"), Err(RingError::Gone));
    assert!(began.elapsed() < limits.look / 2, "the end rings too");
    assert!(
        theirs.client(support::peer(soon())).is_err(),
        "a closed channel is not free"
    );
    let mut second = server(&ours, soon());
    client(&theirs, soon()).submit(b"new").expect("room");
    second
        .serve_one(None, |message, _| assert_eq!(message, b"new"))
        .expect("only what is new");
}

/// The exchange of the processor itself, which loom's model does not have: many threads take one channel at the same
/// moment, many times over.
#[test]
fn of_threads_that_claim_a_channel_at_once_one_gets_it() {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 1000;
    let words = ChannelWords::<AtomicU32>::default();
    let (go, done, winners) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let wait = |word: &AtomicU32, at_least: u32| {
        while word.load(Ordering::Acquire) < at_least {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    wait(&go, round);
                    let won = Term::claim(&words).is_some();
                    winners.fetch_add(u32::from(won), Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Release);
                }
            });
        }
        for round in 1..=ROUNDS {
            go.store(round, Ordering::Release);
            wait(&done, THREADS * round);
            Term::of_number(round).reset(&words);
        }
    });
    assert_eq!(winners.load(Ordering::Relaxed), ROUNDS);
}

/// Several messages are under way at once, and their replies come in their order.
#[test]
fn posted_messages_are_answered_in_their_order() {
    let (worker, program, _fd) = regions(&SMALL);
    thread::scope(|scope| {
        scope.spawn(|| {
            server(&worker, soon()).serve(|message, reply| {
                reply.extend_from_slice(message);
                reply.push(1);
            })
        });
        let mut client = client(&program, soon());
        let mut reply = Vec::new();
        for round in 0..100_u8 {
            for part in 0..4 {
                client.post(&[round, part]).expect("sent");
            }
            for part in 0..4 {
                client.take(&mut reply).expect("a reply");
                assert_eq!(reply, [round, part, 1]);
            }
        }
    });
}

/// A program maps its data area where the worker has it, so that an address there means the same to both.
#[test]
fn the_data_area_lies_at_one_address_in_both_processes() {
    let shape = Shape {
        data_bytes: 1 << 20,
        ..SMALL
    };
    let (fd, address) = {
        let (worker, fd) = Region::create(&shape).expect("a region");
        (fd, worker.data().0.addr())
    };
    // The maker's mapping is gone, as if this were the other process.
    let program = Region::attach(fd.as_fd(), Backing::Sealed).expect("the region");
    assert_eq!(program.data().0.addr(), address);
    let second = Region::attach(fd.as_fd(), Backing::Sealed).expect("the region");
    assert_ne!(
        second.data().0.addr(),
        address,
        "it is taken: any other address will do"
    );
}
