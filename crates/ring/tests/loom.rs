//! Indices, sleep and the owner word under loom: every interleaving of two threads, with weak memory.
//!
//! No sleep here has a time limit: a lost wake is a deadlock, which loom reports.

use std::sync::atomic::Ordering;
use std::time::Duration;

use divvy_ring::RingError;
use divvy_ring::index::{ConsumerIndex, ProducerIndex, Word};
use divvy_ring::layout::ChannelWords;
use divvy_ring::owner::Term;
use divvy_ring::sleep::{Doorbell, Waiting};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

#[derive(Default)]
struct LoomWord(AtomicU32);

impl Word for LoomWord {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    /// An exchange is used here: loom does not order a plain store after another thread's exchange that read this
    /// thread's earlier store. With these orders it acquires nothing.
    fn store(&self, value: u32, order: Ordering) {
        self.0.swap(value, order);
    }

    fn replace(&self, current: u32, new: u32) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.0.compare_exchange(current, new, order.0, order.1).is_ok()
    }

    fn raise(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// A futex: it compares and sleeps in one step, for ever.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    wakes: Condvar,
}

impl Doorbell<LoomWord> for Futex {
    fn wait(&self, signal: &LoomWord, seen: u32, _limit: Duration) {
        let held = self.lock.lock().expect("no panic");
        if signal.load(Ordering::SeqCst) == seen {
            drop(self.wakes.wait(held).expect("no panic"));
        }
    }

    fn ring(&self, _signal: &LoomWord) {
        let _held = self.lock.lock().expect("no panic");
        self.wakes.notify_all();
    }
}

/// Frames of the model's ring, which are 8 bytes each.
const FRAMES: u32 = 2;
const CAPACITY: u32 = 8 * FRAMES;
const FOREVER: Duration = Duration::MAX;

/// One channel, of which one ring is used.
#[derive(Default)]
struct Channel {
    words: ChannelWords<LoomWord>,
    /// What the frames hold. Loom fails where two threads are at one of them.
    frames: [UnsafeCell<u32>; FRAMES as usize],
    client: Futex,
    server: Futex,
}

// SAFETY: loom checks each access to the cells.
unsafe impl Sync for Channel {}
// SAFETY: as above.
unsafe impl Send for Channel {}

impl Channel {
    fn send(&self, index: &mut ProducerIndex, value: u32) {
        let ring = &self.words.requests;
        while !index.look(ring, 8).expect("an honest consumer") {
            let nothing = || Ok(!index.look(ring, 8)?);
            let slept = self
                .words
                .client
                .sleep(Waiting::Room, &self.client, FOREVER, nothing);
            slept.expect("an honest consumer");
        }
        let frame = &self.frames[(index.tail() / 8 % FRAMES) as usize];
        // SAFETY: loom checks the access.
        frame.with_mut(|frame| unsafe { *frame = value });
        index.publish(ring, 8);
        self.words.server.notify(Waiting::Message, &self.server);
    }

    /// The next message, or `None` if the client has left.
    fn receive(&self, index: &mut ConsumerIndex, term: Term) -> Option<u32> {
        let ring = &self.words.requests;
        while index.available() == 0 {
            let over = term.is_over(&self.words);
            if index.look(ring).expect("an honest producer") > 0 {
                break;
            }
            if over {
                return None;
            }
            let nothing = || Ok(index.look(ring)? == 0 && !term.is_over(&self.words));
            let slept = self
                .words
                .server
                .sleep(Waiting::Message, &self.server, FOREVER, nothing);
            slept.expect("an honest producer");
        }
        let frame = &self.frames[(index.head() / 8 % FRAMES) as usize];
        // SAFETY: loom checks the access.
        let value = frame.with(|frame| unsafe { *frame });
        index.advance(8);
        if index.should_publish() {
            index.publish(ring);
            self.words.client.notify(Waiting::Room, &self.client);
        }
        Some(value)
    }
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn no_wake_is_lost_and_no_frame_is_overwritten() {
    model(3, || {
        let channel = Arc::new(Channel::default());
        let producer = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                let mut index = ProducerIndex::new(CAPACITY);
                for value in 0..FRAMES + 1 {
                    channel.send(&mut index, value);
                }
            })
        };
        let mut index = ConsumerIndex::new(CAPACITY);
        for value in 0..FRAMES + 1 {
            assert_eq!(channel.receive(&mut index, Term::FIRST), Some(value));
        }
        producer.join().expect("no panic");
    });
}

#[test]
fn a_message_wakes_a_sleeper_once() {
    struct Counted(Futex, AtomicU32);
    impl Doorbell<LoomWord> for Counted {
        fn wait(&self, signal: &LoomWord, seen: u32, limit: Duration) {
            self.0.wait(signal, seen, limit);
        }
        fn ring(&self, signal: &LoomWord) {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.ring(signal);
        }
    }
    model(3, || {
        let channel = Arc::new((
            ChannelWords::<LoomWord>::default(),
            Counted(Futex::default(), AtomicU32::new(0)),
        ));
        let producer = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                let mut index = ProducerIndex::new(CAPACITY);
                let (words, doorbell) = &*channel;
                for _ in 0..FRAMES {
                    index.publish(&words.requests, 8);
                    words.server.notify(Waiting::Message, doorbell);
                }
            })
        };
        let (words, doorbell) = &*channel;
        let mut index = ConsumerIndex::new(CAPACITY);
        let mut sleeps = 0;
        while index.look(&words.requests) == Ok(0) {
            sleeps += 1;
            let nothing = || Ok(index.look(&words.requests)? == 0);
            let slept = words.server.sleep(Waiting::Message, doorbell, FOREVER, nothing);
            assert_eq!(slept, Ok(()));
        }
        producer.join().expect("no panic");
        assert!(doorbell.1.load(Ordering::Relaxed) <= sleeps);
    });
}

#[test]
fn a_sleeper_learns_that_the_other_side_has_left() {
    model(3, || {
        let channel = Arc::new(Channel::default());
        let client = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                let term = Term::claim(&channel.words).expect("it is free");
                channel.send(&mut ProducerIndex::new(CAPACITY), 7);
                assert!(term.leave(&channel.words));
                channel.words.server.call(&channel.server);
            })
        };
        let mut index = ConsumerIndex::new(CAPACITY);
        assert_eq!(channel.receive(&mut index, Term::FIRST), Some(7));
        assert_eq!(channel.receive(&mut index, Term::FIRST), None);
        client.join().expect("no panic");
    });
}

#[test]
fn the_next_client_finds_empty_rings() {
    model(2, || {
        let channel = Arc::new(Channel::default());
        let first = Term::claim(&channel.words).expect("it is free");
        let client = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                channel.send(&mut ProducerIndex::new(CAPACITY), 1);
                assert!(first.leave(&channel.words));
                channel.words.server.call(&channel.server);
                let second = loop {
                    match Term::claim(&channel.words) {
                        Some(term) => break term,
                        None => thread::yield_now(),
                    }
                };
                assert_ne!(first, second);
                assert!(!first.leave(&channel.words), "it is no longer its own");
                channel.send(&mut ProducerIndex::new(CAPACITY), 2);
            })
        };
        let mut index = ConsumerIndex::new(CAPACITY);
        assert_eq!(channel.receive(&mut index, Term::FIRST), Some(1));
        assert_eq!(channel.receive(&mut index, Term::FIRST), None);
        Term::FIRST.next().reset(&channel.words);
        let mut index = ConsumerIndex::new(CAPACITY);
        assert_eq!(channel.receive(&mut index, Term::FIRST.next()), Some(2));
        client.join().expect("no panic");
    });
}

#[test]
fn indices_that_no_honest_side_has_are_refused() {
    let words = ChannelWords::<std::sync::atomic::AtomicU32>::default();
    let hostile = |outcome: Result<_, RingError>| matches!(outcome, Err(RingError::Hostile { .. }));
    let relaxed = Ordering::Relaxed;

    let ring = &words.requests;
    let mut consumer = ConsumerIndex::new(4096);
    ring.tail.0.store(64, relaxed);
    assert_eq!(consumer.look(ring), Ok(64));
    // Back, past the ring's size, and not at a frame.
    for tail in [56, 0, 4104, 68, u32::MAX - 7] {
        ring.tail.0.store(tail, relaxed);
        assert!(hostile(consumer.look(ring).map(|_| ())), "{tail}");
    }
    ring.tail.0.store(4096, relaxed);
    assert_eq!(consumer.look(ring), Ok(4096));

    let ring = &words.replies;
    let mut producer = ProducerIndex::new(4096);
    producer.publish(ring, 4096);
    assert_eq!(producer.look(ring, 8), Ok(false));
    ring.head.0.store(128, relaxed);
    assert_eq!(producer.look(ring, 128), Ok(true));
    for head in [120, 0, 132, 4104, u32::MAX - 7] {
        ring.head.0.store(head, relaxed);
        assert!(hostile(producer.look(ring, 8).map(|_| ())), "{head}");
    }
}

#[test]
fn two_threads_that_claim_one_channel_do_not_both_get_it() {
    model(3, || {
        let channel = Arc::new(Channel::default());
        let other = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || Term::claim(&channel.words).is_some())
        };
        let ours = Term::claim(&channel.words).is_some();
        let theirs = other.join().expect("no panic");
        assert!(ours ^ theirs, "{ours} {theirs}");
    });
}
