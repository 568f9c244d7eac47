//! The limit on how much of the log a user can fill. So many lines a minute are written for a user's requests; the rest
//! are counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of lines that are written for a user in each [`SPAN`].
const MOST: u32 = 20;
const SPAN: Duration = Duration::from_secs(60);

/// The lines of each user.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    by_user: Mutex<HashMap<u32, Span>>,
}

#[derive(Debug)]
struct Span {
    begin: Instant,
    written: u32,
    left_out: u32,
}

impl Lines {
    /// Whether another line for an action of user `uid` is to be written now.
    pub fn allow(&self, uid: u32) -> bool {
        self.allow_at(uid, Instant::now())
    }

    fn allow_at(&self, uid: u32, now: Instant) -> bool {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let span = by_user.entry(uid).or_insert(Span {
            begin: now,
            written: 0,
            left_out: 0,
        });
        let writes = span.written < MOST;
        match writes {
            true => span.written += 1,
            false => span.left_out += 1,
        }
        writes
    }

    /// The users with lines left out in a span that has ended, and how many. To be called now and then.
    pub fn settle(&self) -> Vec<(u32, u32)> {
        self.settle_at(Instant::now())
    }

    fn settle_at(&self, now: Instant) -> Vec<(u32, u32)> {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = Vec::new();
        by_user.retain(|uid, span| {
            let goes_on = now.saturating_duration_since(span.begin) < SPAN;
            if !goes_on && span.left_out > 0 {
                left_out.push((*uid, span.left_out));
            }
            goes_on
        });
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_fills_so_many_lines_a_minute_and_the_rest_is_one() {
        let lines = Lines::default();
        let begin = Instant::now();
        let written = |uid, at: Instant| (0..1000).filter(|_| lines.allow_at(uid, at)).count();
        assert_eq!(written(1000, begin), MOST as usize);
        assert_eq!(
            written(1001, begin + SPAN / 2),
            MOST as usize,
            "another's are its own"
        );
        assert_eq!(lines.settle_at(begin + SPAN / 2), []);
        assert_eq!(lines.settle_at(begin + SPAN), [(1000, 1000 - MOST)]);
        assert_eq!(lines.settle_at(begin + SPAN), [], "once");
        assert_eq!(written(1000, begin + SPAN), MOST as usize);
    }
}
