//! Which of several long launches that wait goes next: that of the stream with the highest priority. The device would
//! choose so too, but a gate lets one long launch into it at a time.

/// A launch of lower priority gives way to so many long ones, then it goes: no stream starves.
const GIVES_WAY: u64 = 8;

/// The long launches that wait.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// The priorities of their streams: a lower number is a higher priority.
    waiting: Vec<i32>,
    /// How many long launches went so far.
    went: u64,
}

/// A long launch that waits, or comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub priority: i32,
    /// How many had gone when it came.
    since: u64,
}

impl Ranks {
    /// One that comes now.
    pub fn of(&self, priority: i32) -> Rank {
        Rank {
            priority,
            since: self.went,
        }
    }

    /// It waits.
    pub fn enter(&mut self, priority: i32) -> Rank {
        self.waiting.push(priority);
        self.of(priority)
    }

    /// It waits no longer.
    pub fn leave(&mut self, rank: Rank) {
        if let Some(at) = self.waiting.iter().position(|other| *other == rank.priority) {
            self.waiting.swap_remove(at);
        }
    }

    /// A long launch goes.
    pub fn went(&mut self) {
        self.went += 1;
    }

    /// Whether one of higher priority waits, to which this one gives way.
    pub fn gives_way(&self, rank: Rank) -> bool {
        let higher = self.waiting.iter().any(|other| *other < rank.priority);
        higher && self.went.saturating_sub(rank.since) < GIVES_WAY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_priority_goes_first_and_no_stream_starves() {
        let mut ranks = Ranks::default();
        let low = ranks.enter(0);
        assert!(!ranks.gives_way(low), "it is alone");
        for _ in 0..GIVES_WAY {
            let high = ranks.enter(-5);
            assert!(ranks.gives_way(low) && !ranks.gives_way(high));
            ranks.leave(high);
            ranks.went();
        }
        let high = ranks.enter(-5);
        assert!(!ranks.gives_way(low), "it gave way often enough");
        ranks.leave(low);
        let same = ranks.of(-5);
        assert!(!ranks.gives_way(same));
        ranks.leave(high);
        assert!(ranks.waiting.is_empty());
    }
}
