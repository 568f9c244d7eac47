//! What the relay says. A guest can cause as many lines as it likes, so their number is bounded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::report::remark;

/// So many lines of a kind may come at once. After them one follows each second.
const BURST: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Log {
    kinds: BTreeMap<&'static str, Kind>,
}

/// Lines that say the same of different programs.
#[derive(Debug)]
struct Kind {
    /// So many lines may come now.
    room: u64,
    /// To this moment the seconds are counted in `room`.
    at: Instant,
    /// Lines since the last one that was printed.
    left_out: u64,
}

impl Log {
    /// Prints a line, or counts it.
    pub fn say(&mut self, kind: &'static str, text: &str) {
        match self.take(kind, Instant::now()) {
            None => {}
            Some(0) => remark(text),
            Some(count) => remark(&format!("{text} (lines left out before it: {count})")),
        }
    }

    /// Whether there is room for a line of this kind, and then how many were left out before it.
    fn take(&mut self, kind: &'static str, now: Instant) -> Option<u64> {
        let kind = self.kinds.entry(kind).or_insert(Kind {
            room: BURST,
            at: now,
            left_out: 0,
        });
        let seconds = now.saturating_duration_since(kind.at).as_secs();
        kind.room = kind.room.saturating_add(seconds).min(BURST);
        kind.at += Duration::from_secs(seconds);
        match kind.room.checked_sub(1) {
            Some(room) => {
                kind.room = room;
                Some(std::mem::take(&mut kind.left_out))
            }
            None => {
                kind.left_out += 1;
                None
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        for (kind, Kind { left_out, .. }) in &self.kinds {
            if *left_out > 0 {
                remark(&format!(
                    "lines left out at the end: {left_out} of the kind \"{kind}\""
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_kind_is_counted_and_others_are_printed() {
        let (mut log, start) = (Log::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let printed = (0..1000).filter(|_| log.take("served", start).is_some()).count();
        assert_eq!(printed as u64, BURST);
        assert_eq!(log.take("ended", start), Some(0), "another kind");
        assert_eq!(log.take("served", after(1)), Some(1000 - BURST));
        assert_eq!(log.take("served", after(1)), None);
        assert_eq!(log.take("served", after(100)), Some(1));
        log.kinds.clear();
    }
}
