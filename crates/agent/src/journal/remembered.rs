//! The newest records of the history, within so many bytes. Where they are too many, the user with the most loses the
//! oldest: a user with many slices pushes out its own.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use crate::api::history::HistoryRecord;

/// See the module.
#[derive(Debug)]
pub(crate) struct Remembered {
    by_user: BTreeMap<u32, OfUser>,
    /// The bytes of all.
    bytes: usize,
    /// The most bytes of all.
    most: usize,
    /// The number of the next record.
    next: u64,
}

/// A user's records, oldest first.
#[derive(Debug, Default)]
struct OfUser {
    records: VecDeque<Numbered>,
    bytes: usize,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    bytes: usize,
    record: HistoryRecord,
}

impl Remembered {
    /// Nothing, and room for so many bytes.
    pub fn within(most: usize) -> Self {
        Self {
            by_user: BTreeMap::new(),
            bytes: 0,
            most,
            next: 0,
        }
    }

    /// Adds a record that takes so many bytes in a file.
    pub fn add(&mut self, record: HistoryRecord, bytes: usize) {
        let of_user = self.by_user.entry(record.uid).or_default();
        of_user.records.push_back(Numbered {
            number: self.next,
            bytes,
            record,
        });
        of_user.bytes += bytes;
        self.bytes += bytes;
        self.next += 1;
        while self.bytes > self.most && self.forget() {}
    }

    /// Forgets the oldest record of the user with the most bytes; whether there was one.
    fn forget(&mut self) -> bool {
        let Some((uid, most)) = self.by_user.iter_mut().max_by_key(|(_, of_user)| of_user.bytes) else {
            return false;
        };
        let gone = most.records.pop_front().map_or(0, |oldest| oldest.bytes);
        most.bytes -= gone;
        self.bytes -= gone;
        if most.records.is_empty() {
            let uid = *uid;
            self.by_user.remove(&uid);
        }
        true
    }

    /// The newest `count` records of a user, and `count` of all others, of each of them as many as of another as far as
    /// there are. Oldest first.
    pub fn newest(&self, reader: u32, count: usize) -> Vec<HistoryRecord> {
        let mut chosen: Vec<&Numbered> = Vec::new();
        let mut others: Vec<&OfUser> = Vec::new();
        for (uid, of_user) in &self.by_user {
            match *uid == reader {
                true => chosen.extend(of_user.records.iter().rev().take(count)),
                false => others.push(of_user),
            }
        }
        // A user with few leaves the rest of its part to those with more.
        others.sort_by_key(|of_user| of_user.records.len());
        let (mut left, mut users) = (count, others.len());
        for of_user in others {
            let part = (left / users).min(of_user.records.len());
            chosen.extend(of_user.records.iter().rev().take(part));
            left -= part;
            users -= 1;
        }
        chosen.sort_by_key(|numbered| numbered.number);
        chosen
            .into_iter()
            .map(|numbered| numbered.record.clone())
            .collect()
    }

    /// All records, oldest first, as the lines of a file.
    ///
    /// # Errors
    /// A record that is no JSON, which there is none of.
    pub fn lines(&self) -> io::Result<Vec<u8>> {
        let all = self.by_user.values().flat_map(|of_user| &of_user.records);
        let mut all: Vec<&Numbered> = all.collect();
        all.sort_by_key(|numbered| numbered.number);
        let mut lines = Vec::with_capacity(self.bytes + all.len());
        for numbered in all {
            serde_json::to_writer(&mut lines, &numbered.record)?;
            lines.push(b'\n');
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(records: &[(u32, &str)], most: usize) -> Remembered {
        let mut known = Remembered::within(most);
        for (uid, slice) in records {
            let record = HistoryRecord {
                uid: *uid,
                slice: (*slice).into(),
                ..HistoryRecord::default()
            };
            known.add(record, 10);
        }
        known
    }

    fn names(records: &[HistoryRecord]) -> Vec<&str> {
        records.iter().map(|record| record.slice.as_str()).collect()
    }

    #[test]
    fn the_user_with_the_most_loses_the_oldest() {
        let all = [(1, "a"), (2, "b"), (2, "c"), (2, "d"), (1, "e"), (2, "f")];
        assert_eq!(names(&filled(&all, 40).newest(0, 9)), ["a", "d", "e", "f"]);
        assert_eq!(names(&filled(&all, 60).newest(0, 9)).len(), 6);
        assert!(filled(&all, 9).newest(0, 9).is_empty(), "none fits");
    }

    #[test]
    fn a_reader_gets_its_own_and_a_part_of_each_other_user_s() {
        let mut all = vec![(1, "mine"), (2, "few")];
        all.extend((0..10).map(|_| (3, "many")));
        all.extend((0..10).map(|_| (1, "mine")));
        let known = filled(&all, usize::MAX);
        let shown = known.newest(1, 4);
        let count = |name: &str| names(&shown).iter().filter(|shown| **shown == name).count();
        assert_eq!((count("mine"), count("few"), count("many")), (4, 1, 3));
        assert_eq!(names(&shown)[0], "few", "the oldest comes first");
        assert_eq!(known.newest(4, 100).len(), all.len());
    }
}
