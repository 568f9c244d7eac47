//! A client of an attacker's own making: it sends the worker of its slice what no honest client sends.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use divvy_remote::fuzzing::{Source, generate};
use divvy_remote::wire::message::{Sent, encode};
use divvy_remote::wire::{HEADER_BYTES, Header, Hello, Shape, Sort, Writer, by_hand, shapes};
use divvy_remote::{Connector, LocalConnector, Transport};

/// Threads of one connection: they use each other's names and addresses.
const THREADS: u32 = 2;
/// A call that was not answered for so long is left alone, and another connection is made.
const STUCK: Duration = Duration::from_millis(500);
/// No attack lasts longer.
const LONGEST: Duration = Duration::from_secs(60);
/// Words of answers that are used again, as names and addresses.
const KNOWN: usize = 64;

/// What was done, by all threads.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    succeeded: AtomicU64,
    connections: AtomicU64,
    allocated: AtomicU64,
}

impl Counts {
    fn goes_on(&self, count: u64, end: Instant) -> bool {
        self.sent.load(Ordering::Relaxed) < count && Instant::now() < end
    }
}

/// A small generator of numbers (xorshift64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.roll() % end.max(1) as u64).unwrap_or(0)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most);
        (0..count).map(|_| self.roll() as u8).collect()
    }
}

/// Sends so many messages, or as many as it can in [`LONGEST`], and prints what was done.
pub fn forge(socket: &Path, count: u64) -> anyhow::Result<()> {
    let end = Instant::now() + LONGEST;
    let counts = Arc::new(Counts::default());
    let mut seed = 1;
    while counts.goes_on(count, end) {
        let connector = Arc::new(LocalConnector::new(socket.to_owned()));
        let known = Arc::new(RwLock::new(Vec::new()));
        let (ended, both) = channel();
        counts.connections.fetch_add(1, Ordering::Relaxed);
        for thread in 0..THREADS {
            let (connector, known, counts) =
                (Arc::clone(&connector), Arc::clone(&known), Arc::clone(&counts));
            let ended = ended.clone();
            seed += 1;
            let dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            std::thread::spawn(move || {
                let attack = Attack::new(&*connector, thread, dice, &known, &counts);
                if let Some(mut attack) = attack {
                    while counts.goes_on(count, end) && attack.step().is_some() {}
                }
                let _alone = ended.send(());
            });
        }
        drop(ended);
        // Both threads have ended, or one waits for an answer: it is left alone.
        let mut before = counts.sent.load(Ordering::Relaxed);
        while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = both.recv_timeout(STUCK) {
            let now = counts.sent.load(Ordering::Relaxed);
            if now == before || !counts.goes_on(count, end) {
                break;
            }
            before = now;
        }
    }
    let told = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{}",
        serde_json::json!({
            "sent": told(&counts.sent),
            "succeeded": told(&counts.succeeded),
            "connections": told(&counts.connections),
            "allocated": told(&counts.allocated),
        })
    );
    // Threads may wait for answers that never come.
    std::process::exit(0)
}

/// The socket of the slice that this process is in.
pub fn own_socket() -> anyhow::Result<std::path::PathBuf> {
    let socket = std::env::var_os("DIVVY_REMOTE").context("This process is in no enforced slice")?;
    Ok(socket.into())
}

/// One thread's way to the worker.
struct Attack<'a> {
    transport: Box<dyn Transport>,
    sequence: u64,
    dice: Dice,
    known: &'a RwLock<Vec<u64>>,
    counts: &'a Counts,
    message: Vec<u8>,
    answer: Vec<u8>,
}

impl<'a> Attack<'a> {
    /// Greets, and makes a context current as an honest client does.
    fn new(
        connector: &dyn Connector,
        thread: u32,
        dice: Dice,
        known: &'a RwLock<Vec<u64>>,
        counts: &'a Counts,
    ) -> Option<Self> {
        let mut transport = connector.open(thread).ok()?;
        let capacity = transport.capacity();
        let hello = Hello::ours(thread, u32::try_from(capacity).ok()?).encode();
        let mut answer = Vec::new();
        transport.call(&hello, &mut answer).ok()?;
        let mut attack = Self {
            transport,
            sequence: 0,
            dice,
            known,
            counts,
            message: vec![0; capacity.min(1 << 16)],
            answer,
        };
        attack.send(by_hand::START, Sort::Call, |_, _| {})?;
        attack.send(by_hand::PRIMARY_RETAIN, Sort::Call, |_, m| m.plain(0_i32))?;
        let context = attack.words().first().copied()?;
        attack.send(by_hand::SET_CURRENT, Sort::Submit, |_, m| m.plain(context))?;
        Some(attack)
    }

    /// One message. None once the connection has ended.
    fn step(&mut self) -> Option<()> {
        match self.dice.below(1000) {
            // As much memory as it can get, and what it has given back at the same time.
            0..=249 => self.allocate(),
            250..=349 => {
                let address = self.any_known();
                self.send(by_hand::FREE, Sort::Call, |_, m| m.plain(address))
            }
            350..=984 => self.generated(),
            985..=989 => {
                let at = self.dice.below(by_hand::ALL.len());
                let part = self.dice.bytes(48);
                self.send(by_hand::ALL[at].0, Sort::Call, |_, m| m.bytes(&part))
            }
            // Another context: this thread alone may lose it.
            990..=998 => {
                let context = self.any_known();
                self.send(by_hand::SET_CURRENT, Sort::Submit, |_, m| m.plain(context))
            }
            _ => {
                let rubbish = self.dice.bytes(200);
                self.counts.sent.fetch_add(1, Ordering::Relaxed);
                self.transport.submit(&rubbish).ok()
            }
        }
    }

    fn allocate(&mut self) -> Option<()> {
        let mut calls = shapes().iter();
        let (_, id, arguments) = calls.find(|(symbol, ..)| symbol.name() == "cuMemAlloc_v2")?;
        let bytes = 1_u64 << (16 + self.dice.below(12));
        let sent = [Sent::Wanted(true), Sent::Value(bytes.to_le_bytes().to_vec())];
        self.send(*id, Sort::Call, |_, m| encode(arguments, &sent, m))?;
        if self.code() == Some(0) {
            self.counts.allocated.fetch_add(1, Ordering::Relaxed);
        }
        self.remember();
        Some(())
    }

    fn generated(&mut self) -> Option<()> {
        let (_, id, arguments) = shapes()[self.dice.below(shapes().len())];
        let source = self.dice.bytes(64);
        let mut sent = generate(arguments, &mut Source(&source));
        for (value, (_, shape)) in sent.iter_mut().zip(arguments) {
            let is_name = matches!(shape, Shape::Handle(_) | Shape::Address);
            if let Sent::Word(word) = value
                && is_name
                && self.dice.below(3) != 0
            {
                *word = self.any_known();
            }
        }
        let sort = match self.dice.below(4) {
            0 => Sort::Submit,
            _ => Sort::Call,
        };
        self.send(id, sort, |_, m| encode(arguments, &sent, m))?;
        if sort == Sort::Call && self.code() == Some(0) {
            self.remember();
        }
        Some(())
    }

    fn any_known(&mut self) -> u64 {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let at = self.dice.below(known.len());
        let word = known.get(at).copied().unwrap_or(0);
        drop(known);
        // Also inside of what is there, and past its end.
        match self.dice.below(8) {
            0 => word.wrapping_add(self.dice.roll() % (1 << 28)),
            _ => word,
        }
    }

    /// Words of the last answer, behind its two codes.
    fn words(&self) -> Vec<u64> {
        let body = self.answer.get(HEADER_BYTES + 8..).unwrap_or_default();
        let (words, _) = body.as_chunks::<8>();
        words.iter().copied().map(u64::from_le_bytes).collect()
    }

    fn code(&self) -> Option<u32> {
        let code = self.answer.get(HEADER_BYTES..HEADER_BYTES + 4)?;
        Some(u32::from_le_bytes(code.try_into().ok()?))
    }

    fn remember(&mut self) {
        let place = self.dice.below(KNOWN);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for word in self.words().into_iter().take(2).filter(|word| *word > 0xffff) {
            if known.len() < KNOWN {
                known.push(word);
            } else {
                known[place] = word;
            }
        }
    }

    /// Sends a message, and takes its answer if it has one.
    fn send(&mut self, id: u32, sort: Sort, put: impl FnOnce(&mut Dice, &mut Writer<'_>)) -> Option<()> {
        self.sequence += 1;
        let mut to = Writer::new(&mut self.message[HEADER_BYTES..]);
        put(&mut self.dice, &mut to);
        // What does not fit is cut off: then it is malformed.
        let length = HEADER_BYTES + to.finish().unwrap_or(0);
        let header = Header {
            length: u32::try_from(length).ok()?,
            id,
            sequence: self.sequence,
            order: 0,
            sort,
        };
        header.write(&mut Writer::new(&mut self.message));
        self.counts.sent.fetch_add(1, Ordering::Relaxed);
        let message = &self.message[..length];
        if sort == Sort::Submit {
            return self.transport.submit(message).ok();
        }
        self.transport.call(message, &mut self.answer).ok()?;
        if self.code() == Some(0) {
            self.counts.succeeded.fetch_add(1, Ordering::Relaxed);
        }
        Some(())
    }
}
