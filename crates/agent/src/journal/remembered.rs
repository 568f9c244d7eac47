//! The newest records of the history, within so many bytes. Where they are too many, the account with the most loses
//! the oldest: a user with many slices pushes out its own.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use crate::api::history::HistoryRecord;

/// See the module.
#[derive(Debug)]
pub(crate) struct Remembered {
    by_account: BTreeMap<u32, OfAccount>,
    /// The bytes of all.
    bytes: usize,
    /// The most bytes of all.
    most: usize,
    /// The number of the next record.
    next: u64,
}

/// An account's records, oldest first.
#[derive(Debug, Default)]
struct OfAccount {
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
            by_account: BTreeMap::new(),
            bytes: 0,
            most,
            next: 0,
        }
    }

    /// Adds a record that takes so many bytes in a file.
    pub fn add(&mut self, record: HistoryRecord, bytes: usize) {
        let of_account = self
            .by_account
            .entry(record.account_uid.unwrap_or(record.uid))
            .or_default();
        of_account.records.push_back(Numbered {
            number: self.next,
            bytes,
            record,
        });
        of_account.bytes += bytes;
        self.bytes += bytes;
        self.next += 1;
        while self.bytes > self.most && self.forget() {}
    }

    /// Forgets the oldest record of the account with the most bytes; whether there was one.
    fn forget(&mut self) -> bool {
        let Some((account, most)) = self
            .by_account
            .iter_mut()
            .max_by_key(|(_, of_account)| of_account.bytes)
        else {
            return false;
        };
        let gone = most.records.pop_front().map_or(0, |oldest| oldest.bytes);
        most.bytes -= gone;
        self.bytes -= gone;
        if most.records.is_empty() {
            let account = *account;
            self.by_account.remove(&account);
        }
        true
    }

    /// The newest `count` records of an account, and `count` of all others, of each of them as many as of another as far as
    /// there are. Oldest first.
    pub fn newest(&self, reader: u32, count: usize) -> Vec<HistoryRecord> {
        let mut chosen: Vec<&Numbered> = Vec::new();
        let mut others: Vec<&OfAccount> = Vec::new();
        for (account, of_account) in &self.by_account {
            match *account == reader {
                true => chosen.extend(of_account.records.iter().rev().take(count)),
                false => others.push(of_account),
            }
        }
        // A user with few leaves the rest of its part to those with more.
        others.sort_by_key(|of_account| of_account.records.len());
        let (mut left, mut users) = (count, others.len());
        for of_account in others {
            let part = (left / users).min(of_account.records.len());
            chosen.extend(of_account.records.iter().rev().take(part));
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
        let all = self
            .by_account
            .values()
            .flat_map(|of_account| &of_account.records);
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
