//! A slice's recent use of a device: a ring of samples, and the differences between them.

use std::collections::VecDeque;

use divvy_arbiter::{MILLISECOND, Nanos, SECOND};

/// The time between two samples.
pub(super) const INTERVAL: Nanos = 100 * MILLISECOND;
/// Ten seconds of samples, and one to begin with.
const SAMPLES: usize = 101;

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Nanos,
    charged: Nanos,
    queued: Nanos,
}

/// The last ten seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    samples: VecDeque<Sample>,
}

/// The use in a stretch of time, in parts of 10,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// The device's time that was charged.
    pub used: u32,
    /// The time for which the slice waited.
    pub queued: u32,
}

impl Figures {
    /// Takes a sample of the total charge and the total waiting time.
    pub fn take(&mut self, at: Nanos, charged: Nanos, queued: Nanos) {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at, charged, queued });
    }

    /// How many samples there are.
    pub fn count(&self) -> usize {
        self.samples.len()
    }

    /// Forgets all samples: later ones are not to be compared with them.
    pub fn forget(&mut self) {
        self.samples.clear();
    }

    /// The last `seconds`, or as much of them as is recorded.
    pub fn window(&self, seconds: u64) -> Window {
        let Some(last) = self.samples.back() else {
            return Window::default();
        };
        let begin = last.at.saturating_sub(seconds * SECOND);
        // A late timer must not turn a full second into nine tenths.
        let begin = begin.saturating_add(INTERVAL / 2);
        let first = self.samples.iter().rev().find(|sample| sample.at <= begin);
        let first = first.or(self.samples.front()).unwrap_or(last);
        let time = last.at.saturating_sub(first.at);
        Window {
            used: parts(last.charged.saturating_sub(first.charged), time),
            queued: parts(last.queued.saturating_sub(first.queued), time),
        }
    }
}

fn parts(of: Nanos, time: Nanos) -> u32 {
    match time {
        0 => 0,
        time => u32::try_from(u128::from(of) * 10_000 / u128::from(time)).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_what_the_samples_differ_by() {
        let mut figures = Figures::default();
        assert_eq!(figures.window(1), Window::default());
        for n in 0..=300_u64 {
            // Half of everything for twenty seconds, a quarter from then on.
            let charged = n.min(200) * INTERVAL / 2 + n.saturating_sub(200) * INTERVAL / 4;
            figures.take(n * INTERVAL, charged, n * INTERVAL / 10);
            if n == 3 {
                assert_eq!(figures.window(10).used, 5000, "as much as there is");
            }
            if n == 205 {
                assert_eq!((figures.window(1).used, figures.window(10).used), (3750, 4875));
            }
        }
        assert_eq!(
            figures.window(1),
            Window {
                used: 2500,
                queued: 1000
            }
        );
        assert_eq!(figures.window(10).used, 2500);
        assert_eq!(figures.samples.len(), SAMPLES);
        figures.forget();
        assert_eq!(figures.window(10), Window::default());
    }
}
