//! For how long a gate keeps a lease that its program does not use: by the pauses that the program makes.

/// A lease that was unused for so many nanoseconds is returned.
const IDLE_NS: u64 = 100_000;
/// After so many pauses in a row that were longer, a lease is returned as soon as nothing is in flight: waiting for the
/// next launch was in vain each time, and no other slice could use the device.
const LONG_ONES: u32 = 16;

/// The pauses of late.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    long_ones: u32,
}

impl Pauses {
    /// A launch came `ns` after the work before it was over.
    pub fn note(&mut self, ns: u64) {
        self.long_ones = match ns < IDLE_NS {
            true => 0,
            false => self.long_ones.saturating_add(1),
        };
    }

    /// How many nanoseconds without work end the use of a lease.
    pub fn idle_ns(&self) -> u64 {
        match self.long_ones < LONG_ONES {
            true => IDLE_NS,
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_short_pause_ends_a_row_of_long_ones() {
        let mut pauses = Pauses::default();
        for _ in 1..LONG_ONES {
            pauses.note(2_000_000);
            assert_eq!(pauses.idle_ns(), IDLE_NS);
        }
        pauses.note(IDLE_NS);
        assert_eq!(pauses.idle_ns(), 0, "requests come now and then");
        pauses.note(IDLE_NS - 1);
        assert_eq!(pauses.idle_ns(), IDLE_NS, "it launches and waits by turns");
    }
}
