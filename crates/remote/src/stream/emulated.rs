//! An emulated network: the delay of a round trip and a bandwidth, on top of any transport.
//!
//! `DIVVY_REMOTE_DELAY=20us` delays each answer, and `DIVVY_REMOTE_BANDWIDTH=1GB` lets that many bytes pass in a second,
//! each way. The bytes of copies travel in messages then: a network shares no memory.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::{Connector, Lost, NotOpened, Transport};

/// A wait shorter than this is spent awake: a sleep may take that much longer.
const AWAKE: Duration = Duration::from_micros(150);

const DELAY: &str = "DIVVY_REMOTE_DELAY";
const BANDWIDTH: &str = "DIVVY_REMOTE_BANDWIDTH";

/// What a network costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Network {
    /// The time of a round trip, beside that of the transport below.
    pub delay: Duration,
    /// Bytes in a second, each way. None: as fast as the transport below.
    pub bandwidth: Option<f64>,
}

impl Network {
    /// What the environment asks for; None where it asks for nothing, or for what is not understood.
    pub fn of_environment() -> Option<Self> {
        let text = |name: &str| std::env::var(name).ok();
        let delay = text(DELAY).map(|text| duration(&text));
        let bandwidth = text(BANDWIDTH).map(|text| bytes(&text));
        if delay.is_none() && bandwidth.is_none() {
            return None;
        }
        Some(Self {
            delay: delay.flatten().unwrap_or_default(),
            bandwidth: bandwidth.flatten(),
        })
    }

    /// The variable of this environment that holds what is not understood, and what a right value looks like. A program's
    /// library is silent about it; what starts programs is not.
    pub fn misunderstood() -> Option<(&'static str, &'static str)> {
        let wrong = |name: &str, is_right: fn(&str) -> bool| {
            std::env::var_os(name).is_some_and(|text| !text.to_str().is_some_and(is_right))
        };
        if wrong(DELAY, |text| duration(text).is_some()) {
            return Some((DELAY, "20us, 1.5ms or 1s"));
        }
        wrong(BANDWIDTH, |text| bytes(text).is_some()).then_some((BANDWIDTH, "100MB or 1GB, in a second"))
    }

    fn time(&self, bytes: usize) -> Duration {
        let seconds = self.bandwidth.map_or(0.0, |rate| bytes as f64 / rate);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

/// A number, and the unit behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

/// `20us`, `1.5ms`, `1s`.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let of_second = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * of_second).ok()
}

/// `100MB`, `1GB`: so many bytes in a second.
fn bytes(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    Some(number * factor).filter(|rate| *rate > 0.0)
}

/// Connections over an emulated network.
#[derive(Debug)]
pub struct Distant<C> {
    /// What connects.
    pub connector: C,
    /// What lies between.
    pub network: Network,
}

impl<C: Connector> Connector for Distant<C> {
    fn open(&self, thread: u32) -> Result<Box<dyn Transport>, NotOpened> {
        let inner = self.connector.open(thread)?;
        let now = Instant::now();
        Ok(Box::new(Delayed {
            inner,
            network: self.network,
            sent: now,
            came: now,
            due: VecDeque::new(),
        }))
    }
}

/// A transport over an emulated network.
struct Delayed {
    inner: Box<dyn Transport>,
    network: Network,
    /// When the last byte that was sent has left, and the last one that came has arrived.
    sent: Instant,
    came: Instant,
    /// The earliest time of each answer that was not taken.
    due: VecDeque<Instant>,
}

impl Delayed {
    fn leave(&mut self, bytes: usize) {
        self.sent = self.sent.max(Instant::now()) + self.network.time(bytes);
    }
}

impl Transport for Delayed {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn submit(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.leave(message.len());
        self.inner.submit(message)
    }

    fn post(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.leave(message.len());
        self.due.push_back(self.sent + self.network.delay);
        self.inner.post(message)
    }

    fn take(&mut self, answer: &mut Vec<u8>) -> Result<(), Lost> {
        self.inner.take(answer)?;
        let due = self.due.pop_front().unwrap_or_else(Instant::now);
        self.came = self.came.max(due) + self.network.time(answer.len());
        until(self.came);
        Ok(())
    }
}

fn until(time: Instant) {
    loop {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left.checked_sub(AWAKE) {
            Some(sleep) if !sleep.is_zero() => std::thread::sleep(sleep),
            _ => core::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each message with as many bytes.
    struct Echo(VecDeque<Vec<u8>>);

    impl Transport for Echo {
        fn capacity(&self) -> usize {
            1 << 20
        }

        fn submit(&mut self, _: &[u8]) -> Result<(), Lost> {
            Ok(())
        }

        fn post(&mut self, message: &[u8]) -> Result<(), Lost> {
            self.0.push_back(message.to_vec());
            Ok(())
        }

        fn take(&mut self, answer: &mut Vec<u8>) -> Result<(), Lost> {
            *answer = self.0.pop_front().ok_or(Lost)?;
            Ok(())
        }
    }

    struct Here;

    impl Connector for Here {
        fn open(&self, _: u32) -> Result<Box<dyn Transport>, NotOpened> {
            Ok(Box::new(Echo(VecDeque::new())))
        }
    }

    fn distant(delay: &str, bandwidth: Option<&str>) -> Box<dyn Transport> {
        let network = Network {
            delay: duration(delay).unwrap(),
            bandwidth: bandwidth.map(|text| bytes(text).unwrap()),
        };
        let connector = Here;
        Distant { connector, network }.open(0).unwrap()
    }

    #[test]
    fn calls_under_way_together_share_one_delay() {
        let mut transport = distant("30ms", None);
        let (mut answer, began) = (Vec::new(), Instant::now());
        for _ in 0..4 {
            transport.post(b"call").unwrap();
            transport.submit(b"launch").unwrap();
        }
        for _ in 0..4 {
            transport.take(&mut answer).unwrap();
        }
        // Never earlier than a round trip; a machine under load only adds to it.
        assert!(began.elapsed() >= Duration::from_millis(30));
        assert_eq!(answer, b"call");
    }

    #[test]
    fn bytes_take_their_time_both_ways() {
        let mut transport = distant("0us", Some("10MB"));
        let began = Instant::now();
        transport.call(&[0; 100_000], &mut Vec::new()).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn what_is_not_understood_is_nothing() {
        assert_eq!(duration("20us"), Some(Duration::from_micros(20)));
        assert_eq!(duration("1.5 ms"), Some(Duration::from_micros(1500)));
        assert_eq!(bytes("1GB"), Some(1e9));
        for wrong in ["", "20", "us", "-1us", "1.2.3s", "20usx"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        for wrong in ["0", "fast", "1TB", "-1"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
