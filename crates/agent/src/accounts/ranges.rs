//! The ranges of a file such as /etc/subuid: which numbers it gives to which owner.
//!
//! What newuidmap honours has to be found here, or a user could ask as a number that counts for none of its account. So the
//! numbers are read as the C library reads them, and where versions of newuidmap differ, each reading counts.

use std::collections::HashMap;

/// The largest number of a user: the next means "as it is".
const LAST: u64 = u32::MAX as u64 - 1;

/// A range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Range {
    /// The first number.
    pub first: u32,
    /// The last number.
    pub last: u32,
}

impl Range {
    /// Whether it has this number.
    pub fn has(self, number: u32) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// The number by which it counts where its owner has none. It is never user 0.
    pub fn account(self) -> u32 {
        self.first.max(1)
    }
}

/// The ranges of a file.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// The owners, as the file names them.
    owners: Vec<String>,
    /// By first number, each with the place of its owner.
    ranges: Vec<(Range, usize)>,
    /// The largest last number up to each place.
    reach: Vec<u32>,
}

impl Ranges {
    /// The ranges of a file's text. What is no line of it is left out.
    pub fn parse(text: &str) -> Self {
        let mut owners: Vec<String> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut ranges = Vec::new();
        for (owner, range) in text.lines().flat_map(line) {
            let place = *places.entry(owner).or_insert_with(|| {
                owners.push(owner.to_owned());
                owners.len() - 1
            });
            ranges.push((range, place));
        }
        ranges.sort_unstable_by_key(|(range, owner)| (range.first, range.last, *owner));
        ranges.dedup();
        let reach = ranges
            .iter()
            .scan(0, |most: &mut u32, (range, _)| {
                *most = range.last.max(*most);
                Some(*most)
            })
            .collect();
        Self {
            owners,
            ranges,
            reach,
        }
    }

    /// The ranges that have this number, each with its owner.
    pub fn with(&self, number: u32) -> impl Iterator<Item = (Range, &str)> {
        let begin = self.ranges.partition_point(|(range, _)| range.first <= number);
        let before = self.ranges.iter().zip(&self.reach).take(begin).rev();
        before
            .take_while(move |(_, reach)| **reach >= number)
            .filter(move |((range, _), _)| range.has(number))
            .map(|((range, owner), _)| (*range, self.owners[*owner].as_str()))
    }

    /// All of them, each with its owner.
    pub fn iter(&self) -> impl Iterator<Item = (Range, &str)> {
        let all = self.ranges.iter();
        all.map(|(range, owner)| (*range, self.owners[*owner].as_str()))
    }

    /// The number by which an owner's ranges count who is no user: that of the lowest.
    pub fn account_of(&self, owner: &str) -> Option<u32> {
        let mut own = self.iter().filter(|(_, other)| *other == owner);
        own.next().map(|(range, _)| range.account())
    }
}

/// The ranges of a line `owner:first:count`, one for each reading of its first number. Further fields are ignored, as
/// newuidmap ignores them.
fn line(line: &str) -> Vec<(&str, Range)> {
    let mut fields = line.split(':').map(str::trim);
    let (Some(owner), Some(first), Some(count)) = (fields.next(), fields.next(), fields.next()) else {
        return Vec::new();
    };
    if owner.is_empty() || owner.starts_with('#') {
        return Vec::new();
    }
    let Some(count) = readings(count).into_iter().max().filter(|count| *count > 0) else {
        return Vec::new();
    };
    let mut firsts = readings(first);
    firsts.retain(|first| *first <= LAST);
    let range = |first: u64| Range {
        first: u32::try_from(first).unwrap_or(u32::MAX),
        last: u32::try_from(first.saturating_add(count - 1).min(LAST)).unwrap_or(u32::MAX),
    };
    firsts.into_iter().map(|first| (owner, range(first))).collect()
}

/// What strtoul(3) makes of a whole text: in base 10, and in the base that its beginning tells. What is negative or too
/// large is the largest number.
fn readings(text: &str) -> Vec<u64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let octal = digits.strip_prefix('0').filter(|rest| !rest.is_empty());
    let read = |digits: &str, base: u32| {
        let all = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
        all.then(|| match is_negative {
            true => u64::MAX,
            false => u64::from_str_radix(digits, base).unwrap_or(u64::MAX),
        })
    };
    let mut found: Vec<u64> = [
        read(digits, 10),
        hexadecimal.and_then(|digits| read(digits, 16)),
        octal.and_then(|digits| read(digits, 8)),
    ]
    .into_iter()
    .flatten()
    .collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(text: &str, number: u32) -> Vec<String> {
        let ranges = Ranges::parse(text);
        let mut found: Vec<String> = ranges.with(number).map(|(_, owner)| owner.into()).collect();
        found.sort();
        found
    }

    #[test]
    fn a_number_has_the_owners_whose_ranges_have_it() {
        let text = "alice:100000:10\n1001:100005:1\nbob:100009:65536\nwide:1:4294967295\n";
        assert_eq!(owners(text, 100_000), ["alice", "wide"]);
        assert_eq!(owners(text, 100_005), ["1001", "alice", "wide"]);
        assert_eq!(owners(text, 100_009), ["alice", "bob", "wide"]);
        assert_eq!(owners(text, 165_545), ["wide"]);
        assert_eq!(owners(text, u32::MAX), Vec::<String>::new());
        assert_eq!(owners(text, 0), Vec::<String>::new());
        assert_eq!(Ranges::parse(text).account_of("bob"), Some(100_009));
    }

    #[test]
    fn what_newuidmap_honours_is_found_and_nothing_that_is_a_comment() {
        assert_eq!(owners("a:0x186A0:0x10\n", 100_015), ["a"], "hexadecimal");
        assert_eq!(owners("a:0100000:1\n", 32_768), ["a"], "as octal");
        assert_eq!(owners("a:0100000:1\n", 100_000), ["a"], "and as decimal");
        assert_eq!(owners("a:100000:5:5\n", 100_004), ["a"], "a field too much");
        assert_eq!(owners(" a : +100000 : 5 \n", 100_004), ["a"], "blanks");
        assert_eq!(owners("a:100000:99999999999999999999999\n", 4_000_000_000), ["a"]);
        assert_eq!(owners("a:100000:-1\n", 4_000_000_000), ["a"]);
        let none =
            "a:100000:0\na:100000\n:100000:5\n#a:100000:5\na:x:5\na:100000:5x\na:-5:5\na:4294967295:1\n";
        assert_eq!(owners(none, 100_000), Vec::<String>::new());
        assert_eq!(Ranges::parse(none).iter().count(), 0);
    }

    #[test]
    fn among_many_ranges_each_number_has_its_own() {
        let text: String = (0..40_000)
            .map(|n| format!("u{n}:{}:65536\n", 100_000 + n * 65_536_u64))
            .collect();
        let ranges = Ranges::parse(&text);
        for n in (0..40_000_u64).step_by(997) {
            let number = u32::try_from(100_000 + n * 65_536 + 7).expect("a number");
            let found: Vec<_> = ranges.with(number).map(|(_, owner)| owner.to_owned()).collect();
            assert_eq!(found, [format!("u{n}")]);
        }
    }
}
