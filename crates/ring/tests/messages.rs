//! Messages through one channel: what was sent comes out, in order, whatever its size and wherever the ring ends.

mod support;

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ring::doorbell::{Doorbell, EventFd, Futex, Naps, Polling};
use divvy_ring::{Limits, Peer, RingError, Shape};
use proptest::prelude::*;
use support::{Dice, SMALL, client, regions, server, soon};

/// A message of the model: its bytes follow from its number.
fn message(number: u64, bytes: usize) -> Vec<u8> {
    let mut dice = Dice(number + 1);
    (0..bytes).map(|_| dice.below(256) as u8).collect()
}

/// One step of the model.
#[derive(Clone, Debug)]
enum Step {
    /// The client submits so many bytes.
    Submit(usize),
    /// The server handles so many of the messages that are there.
    Handle(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // A frame has a quarter of the ring at most: 1016 bytes. Sizes around that, and around words, are the edges.
    let size = prop_oneof![
        0_usize..40,
        1000_usize..1040,
        2000_usize..2100,
        Just(0),
        0_usize..2500,
    ];
    let step = prop_oneof![size.prop_map(Step::Submit), (1_usize..6).prop_map(Step::Handle)];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_direction_is_a_queue(steps in steps()) {
        let (ours, theirs, _fd) = regions(&SMALL);
        let short = Limits { stall: Duration::from_micros(10), ..soon() };
        let mut server = server(&ours, soon());
        let mut client = client(&theirs, short);
        let mut model = VecDeque::new();
        let mut number = 0;
        for step in steps {
            match step {
                Step::Submit(bytes) => {
                    number += 1;
                    let sent = message(number, bytes);
                    let free = 4096 - model.iter().map(|sent: &Vec<u8>| on_ring(sent.len())).sum::<usize>();
                    match client.submit(&sent) {
                        Ok(()) => model.push_back(sent),
                        Err(error) => {
                            prop_assert_eq!(error, RingError::Full);
                            // A quarter of the ring may be read and not yet published.
                            prop_assert!(on_ring(bytes) + 1024 > free, "{bytes} bytes in {free}");
                            if bytes > 1016 {
                                return Ok(());
                            }
                        }
                    }
                }
                Step::Handle(count) => {
                    for _ in 0..count.min(model.len()) {
                        let mut copy = Vec::new();
                        server.serve_one(None, |message, _| copy.extend_from_slice(message)).expect("it is there");
                        prop_assert_eq!(Some(copy), model.pop_front());
                    }
                    if model.is_empty() {
                        let nothing = server.serve_one(Some(Duration::ZERO), |_, _| ());
                        prop_assert_eq!(nothing, Err(RingError::TimedOut));
                    }
                }
            }
        }
    }

}

proptest! {
    // Both sides sleep each time: on a busy machine each call takes a while.
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replies_are_those_of_their_calls(sizes in prop::collection::vec((0_usize..9000, 0_usize..9000, 0_usize..3), 1..20)) {
        let (ours, theirs, _fd) = regions(&SMALL);
        let mut served = server(&ours, soon());
        thread::scope(|scope| {
            let server = scope.spawn(move || served.serve(|message, reply| {
                let (number, bytes) = message.split_at(8);
                let wanted = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
                assert_eq!(bytes[8..], message_of(number, bytes.len() - 8));
                reply.extend(message_of(number, wanted));
            }));
            let mut client = client(&theirs, soon());
            let mut reply = vec![1, 2, 3];
            for (number, &(out, back, submits)) in sizes.iter().enumerate() {
                let body = |number: u64| [&number.to_ne_bytes()[..], &(back as u64).to_ne_bytes(), &message(number, out)].concat();
                for _ in 0..submits {
                    client.submit(&body(7_000)).expect("it is read");
                }
                client.call(&body(number as u64), &mut reply).expect("a reply");
                assert_eq!(reply, message(number as u64, back));
            }
            drop(client);
            assert_eq!(server.join().expect("no panic"), RingError::Gone);
        });
    }
}

fn message_of(number: &[u8], bytes: usize) -> Vec<u8> {
    message(u64::from_ne_bytes(number.try_into().expect("8 bytes")), bytes)
}

/// Bytes of a ring of 4096 that a message takes.
fn on_ring(bytes: usize) -> usize {
    let (whole, rest) = (bytes / 1016, bytes % 1016);
    let last = if rest > 0 || bytes == 0 {
        8 + rest.next_multiple_of(8)
    } else {
        0
    };
    whole * 1024 + last
}

#[test]
fn messages_cross_the_end_of_the_index() {
    // 2^32 bytes and more through the largest frames of a large ring.
    let shape = Shape {
        request_bytes: 1 << 26,
        message_bytes: 1 << 24,
        ..SMALL
    };
    let (ours, theirs, _fd) = regions(&shape);
    let mut server = server(&ours, soon());
    let mut client = client(&theirs, soon());
    let sent = message(1, (1 << 24) - 8);
    for _ in 0..(1_u64 << 32) / (1 << 24) + 3 {
        client.submit(&sent).expect("it fits");
        server
            .serve_one(None, |message, _| assert!(message == sent))
            .expect("it is there");
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_and_nothing_is_sent() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let mut server = server(&ours, soon());
    let mut client = client(&theirs, soon());
    let (bytes, most) = ((1 << 16) + 1, 1 << 16);
    assert_eq!(
        client.submit(&vec![0; bytes]),
        Err(RingError::TooLong { bytes, most })
    );
    assert_eq!(
        server.serve_one(Some(Duration::ZERO), |_, _| ()),
        Err(RingError::TimedOut)
    );
    client.submit(b"next").expect("it goes on");
    server
        .serve_one(None, |message, _| assert_eq!(message, b"next"))
        .expect("it goes on");
}

/// A futex that counts, and whose sleeper stays asleep until the test lets it go on.
struct Held<'a> {
    rings: &'a AtomicU64,
    asleep: &'a Barrier,
    go_on: &'a Barrier,
    times: AtomicU64,
}

impl Doorbell<AtomicU32> for Held<'_> {
    fn wait(&self, signal: &AtomicU32, seen: u32, limit: Duration) {
        if self.times.fetch_add(1, Ordering::Relaxed) == 0 {
            self.asleep.wait();
            self.go_on.wait();
        }
        Futex.wait(signal, seen, limit);
    }

    fn ring(&self, signal: &AtomicU32) {
        self.rings.fetch_add(1, Ordering::Relaxed);
        Futex.ring(signal);
    }
}

/// N messages without a reply and one call: one wake of the server, and one of the client.
#[test]
fn a_thousand_submits_and_a_call_are_one_wake() {
    const SUBMITS: u32 = 1000;
    let shape = Shape {
        request_bytes: 1 << 16,
        ..SMALL
    };
    let (ours, theirs, _fd) = regions(&shape);
    let [rings_of_client, rings_of_server] = [AtomicU64::new(0), AtomicU64::new(0)];
    let [server_asleep, server_goes_on, unused] = [2, 2, 1].map(Barrier::new);
    let limits = Limits {
        look: Duration::from_secs(20),
        ..soon()
    };
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let doorbell = Held {
                rings: &rings_of_server,
                asleep: &server_asleep,
                go_on: &server_goes_on,
                times: AtomicU64::new(0),
            };
            let mut server = ours
                .server(0, Peer::new(doorbell, || true).with(limits))
                .expect("a server");
            let mut handled = 0;
            (server.serve(|_, _| handled += 1), handled)
        });
        server_asleep.wait();
        let doorbell = Held {
            rings: &rings_of_client,
            asleep: &unused,
            go_on: &unused,
            times: AtomicU64::new(0),
        };
        let mut client = theirs
            .client(Peer::new(doorbell, || true).with(limits))
            .expect("a client");
        for number in 0..SUBMITS {
            client.submit(&number.to_ne_bytes()).expect("room");
        }
        let rang = rings_of_client.load(Ordering::Relaxed);
        let last = scope.spawn(|| server_goes_on.wait());
        let mut reply = Vec::new();
        client.call(b"end", &mut reply).expect("a reply");
        last.join().expect("no panic");
        // Here, so that a failure does not leave the server at its barrier.
        assert_eq!(rang, 1, "the first submit rang, and no other");
        let counts = client.counts();
        assert_eq!(
            (counts.rings, counts.sent, counts.received),
            (1, u64::from(SUBMITS) + 1, 1)
        );
        assert!(counts.sleeps <= 1, "{counts:?}");
        assert!(rings_of_server.load(Ordering::Relaxed) <= 1);
        drop(client);
        let (end, handled) = serving.join().expect("no panic");
        assert_eq!((end, handled), (RingError::Gone, SUBMITS + 1));
    });
    // The drop's call rang as well.
    assert_eq!(rings_of_client.load(Ordering::Relaxed), 2);
}

#[test]
fn each_doorbell_carries_calls_between_sleepers() {
    fn calls<D: Doorbell<AtomicU32> + Send + 'static>(doorbells: [D; 2]) {
        let (ours, theirs, _fd) = regions(&SMALL);
        let [one, other] = doorbells;
        let limits = Limits {
            look: Duration::from_secs(20),
            ..soon()
        };
        let mut server = ours
            .server(0, Peer::new(one, || true).with(limits))
            .expect("a server");
        let serving = thread::spawn(move || server.serve(|message, reply| reply.extend_from_slice(message)));
        let mut client = theirs
            .client(Peer::new(other, || true).with(limits))
            .expect("a client");
        let mut reply = Vec::new();
        for number in 0..1000_u32 {
            let sent = message(1, number as usize * 7 % 5000);
            client.call(&sent, &mut reply).expect("a reply");
            assert_eq!(reply, sent);
        }
        drop(client);
        let began = Instant::now();
        assert_eq!(serving.join().expect("no panic"), RingError::Gone);
        assert!(began.elapsed() < limits.look / 2, "the end rings too");
    }
    calls([Futex, Futex]);
    calls(EventFd::pair().expect("two eventfds"));
    let interval = Duration::from_micros(50);
    calls([Polling { interval }, Polling { interval }]);
    calls([Naps::default(), Naps::default()]);
}

/// A wake that nothing rings for is seen in the word, and a wait that nothing ends has its limit.
#[test]
fn a_side_that_naps_sees_the_word_change() {
    let word = AtomicU32::new(7);
    let limit = Duration::from_secs(60);
    let began = Instant::now();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| Naps::default().wait(&word, 7, limit));
        word.store(8, Ordering::Relaxed);
        sleeper.join().expect("no panic");
    });
    assert!(began.elapsed() < limit / 2);
    let short = Duration::from_millis(3);
    let began = Instant::now();
    Naps::default().wait(&word, 8, short);
    assert!(began.elapsed() >= short);
}

#[test]
fn a_client_that_does_not_read_cannot_hold_the_server() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let short = Limits {
        stall: Duration::from_millis(50),
        reply: Some(Duration::from_millis(1)),
        ..soon()
    };
    let mut server = server(&ours, short);
    // A reply of several rings.
    let serving = thread::spawn(move || server.serve(|_, reply| reply.resize(1 << 16, 1)));
    let mut client = client(&theirs, short);
    // It sends a call and never reads its reply.
    client.post(b"").expect("there is room");
    let gave_up = Instant::now();
    assert_eq!(serving.join().expect("no panic"), RingError::Full);
    let held = gave_up.elapsed();
    assert!(held < Duration::from_secs(10), "{held:?}");
    drop(client);
}

#[test]
fn a_server_that_does_not_read_fills_the_ring() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let short = Limits {
        stall: Duration::from_millis(1),
        ..soon()
    };
    let mut server = server(&ours, soon());
    let mut client = client(&theirs, short);
    let mut sent = 0;
    while client.submit(&[7; 100]).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 4096 / 112);
    assert_eq!(client.submit(&[7; 100]), Err(RingError::Full));
    // Nothing of the refused ones was sent, and the channel goes on.
    for _ in 0..sent {
        server
            .serve_one(None, |message, _| assert_eq!(message, [7; 100]))
            .expect("it is there");
    }
    assert_eq!(
        server.serve_one(Some(Duration::ZERO), |_, _| ()),
        Err(RingError::TimedOut)
    );
    client.submit(b"more").expect("room");
    server
        .serve_one(None, |message, _| assert_eq!(message, b"more"))
        .expect("it is there");
}

#[test]
fn half_a_message_is_not_followed_by_another() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let mut server = server(&ours, soon());
    let short = Limits {
        stall: Duration::from_millis(1),
        ..soon()
    };
    let mut client = client(&theirs, short);
    assert_eq!(client.submit(&[7; 5000]), Err(RingError::Full));
    let mut handled = 0;
    let mut serve = || server.serve_one(Some(Duration::ZERO), |_, _| handled += 1);
    // The server reads the fragments that are there, and so makes room.
    thread::scope(|scope| {
        let serving = scope.spawn(&mut serve);
        assert_eq!(client.submit(b"next"), Err(RingError::Full));
        drop(client);
        assert_eq!(serving.join().expect("no panic"), Err(RingError::Gone));
    });
    assert_eq!(handled, 0);
}

#[test]
fn a_call_without_a_reply_ends_the_channel() {
    let (ours, theirs, _fd) = regions(&SMALL);
    let _server = server(&ours, soon());
    let short = Limits {
        reply: Some(Duration::from_millis(1)),
        ..soon()
    };
    let mut client = client(&theirs, short);
    assert_eq!(client.call(b"?", &mut Vec::new()), Err(RingError::TimedOut));
    // Its reply may come yet, and must not be taken for the next call's.
    assert_eq!(client.submit(b"!"), Err(RingError::TimedOut));
}
