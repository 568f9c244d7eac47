//! Which accounts a user counts for, by what is known of the machine's users. No I/O.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::ranges::{Range, Ranges};

/// The account of every number that is no known user's, while the file of ranges cannot be believed.
pub(crate) const UNKNOWN: u32 = u32::MAX;
/// The most ranges that are remembered after the file has lost them.
const FORMER: usize = 1 << 16;
/// How many owners above one another are followed.
const DEEPEST: usize = 64;

/// The machine's users, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// Numbers by name.
    pub by_name: HashMap<String, u32>,
    /// The numbers that users of the machine have.
    pub logins: HashSet<u32>,
}

impl Names {
    /// The users of a text such as /etc/passwd's.
    pub fn parse(text: &str) -> Self {
        let mut names = Self::default();
        for line in text.lines() {
            let mut fields = line.split(':');
            if let (Some(name), _, Some(Ok(uid))) =
                (fields.next(), fields.next(), fields.next().map(str::parse::<u32>))
            {
                names.by_name.entry(name.to_owned()).or_insert(uid);
                names.logins.insert(uid);
            }
        }
        names
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Table {
    ranges: Arc<Ranges>,
    /// Ranges that the file had once, the latest first.
    former: Arc<Vec<(Range, String)>>,
    /// The file of ranges cannot be believed: the ranges are the former ones.
    pub is_unfit: bool,
    names: Names,
}

/// An owner of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    User(u32),
    /// Its name is no user's. It counts by this number of its ranges.
    Nameless(u32),
    /// Root, with the account of the range. Each number can be root's, so this tells nothing of a user of the machine.
    Root(u32),
}

impl Table {
    /// The table that follows `before`, by the file's text; `None` where it cannot be believed.
    pub fn after(before: &Self, text: Option<&str>, names: Names) -> Self {
        let ranges = Ranges::parse(text.unwrap_or_default());
        let present: HashSet<(Range, &str)> = ranges.iter().collect();
        let was = before.ranges.iter();
        let was = was.chain(
            before
                .former
                .iter()
                .map(|(range, owner)| (*range, owner.as_str())),
        );
        let mut seen = HashSet::new();
        let former = was
            .filter(|known| !present.contains(known) && seen.insert(*known))
            .take(FORMER)
            .map(|(range, owner)| (range, owner.to_owned()))
            .collect();
        drop(present);
        Self {
            ranges: Arc::new(ranges),
            former: Arc::new(former),
            is_unfit: text.is_none(),
            names,
        }
    }

    /// The same, and more that is known of users.
    pub fn with_names(&self, names: Names) -> Self {
        Self {
            ranges: self.ranges.clone(),
            former: self.former.clone(),
            is_unfit: self.is_unfit,
            names,
        }
    }

    /// The accounts that a user counts for, in ascending order. There is one, but where ranges overlap.
    pub fn of(&self, uid: u32) -> Vec<u32> {
        if uid == 0 {
            return vec![0];
        }
        let mut found = BTreeSet::new();
        let (mut owners, mut open) = (BTreeSet::new(), vec![uid]);
        while let Some(number) = open.pop() {
            let of_number = self.owners(number);
            if of_number.iter().all(|owner| matches!(owner, Owner::Root(_))) {
                found.insert(self.own(number, &of_number));
                continue;
            }
            for owner in of_number {
                match owner {
                    Owner::User(user) if user == number => _ = found.insert(number),
                    Owner::User(user) => {
                        if owners.len() < DEEPEST && owners.insert(user) {
                            open.push(user);
                        }
                    }
                    Owner::Nameless(account) => _ = found.insert(account),
                    Owner::Root(_) => {}
                }
            }
        }
        if found.is_empty() {
            // Owners of one another.
            found.extend(owners.first());
        }
        found.into_iter().collect()
    }

    /// One number for a user, to count by what may wait for no other file: that of its account, or of the lowest range
    /// where it has several.
    pub fn one(&self, uid: u32) -> u32 {
        match self.of(uid)[..] {
            [account] => account,
            _ => {
                let ranges = self.ranges.with(uid).map(|(range, _)| range.account());
                ranges.min().unwrap_or(uid)
            }
        }
    }

    /// What /etc/passwd does not tell of a user's number: the names of its owners that are no user's, and whether it
    /// counts if it is a user's itself.
    pub fn unknown(&self, uid: u32) -> (Vec<&str>, bool) {
        let is_known = |owner: &str| owner.parse::<u32>().is_ok() || self.names.by_name.contains_key(owner);
        let names = self.named(uid).map(|(_, owner)| owner);
        let names = names.filter(|owner| !is_known(owner)).collect();
        let is_former = self.ranges.with(uid).next().is_none() && self.named(uid).next().is_some();
        let is_root_s = || {
            self.owners(uid)
                .iter()
                .any(|owner| matches!(owner, Owner::Root(_)))
        };
        let counts = self.is_unfit || is_former || is_root_s();
        (names, counts && !self.names.logins.contains(&uid))
    }

    /// The account of a number that no user owns.
    fn own(&self, number: u32, of_root: &BTreeSet<Owner>) -> u32 {
        let of_root = of_root.iter().filter_map(|owner| match owner {
            Owner::Root(account) => Some(*account),
            _ => None,
        });
        match of_root.min() {
            _ if self.names.logins.contains(&number) => number,
            Some(account) => account,
            None if self.is_unfit => UNKNOWN,
            None => number,
        }
    }

    fn owners(&self, number: u32) -> BTreeSet<Owner> {
        let mut owners = BTreeSet::new();
        for (range, owner) in self.named(number) {
            let by_number = owner.parse::<u32>().ok();
            let by_name = self.names.by_name.get(owner).copied();
            let users: Vec<u32> = by_number.into_iter().chain(by_name).collect();
            // With number 0 its owner can become root.
            if range.first == 0 {
                owners.insert(Owner::Root(range.account()));
                continue;
            }
            if users.contains(&0) {
                owners.insert(Owner::Root(range.account()));
            } else if users.is_empty() {
                let account = self.ranges.account_of(owner).unwrap_or(range.account());
                owners.insert(Owner::Nameless(account));
            }
            owners.extend(users.into_iter().filter(|user| *user != 0).map(Owner::User));
        }
        owners
    }

    /// The ranges that have this number, with their owners' names. What the file gave once counts until it gives the
    /// number to another: a file that is just being written may lack it, and processes keep a number that they have. Only a user of the
    /// machine has its number back at once.
    fn named(&self, number: u32) -> impl Iterator<Item = (Range, &str)> {
        let is_given = self.ranges.with(number).next().is_some();
        let looks_back = !is_given && !self.names.logins.contains(&number);
        let former = self
            .former
            .iter()
            .filter(move |(range, _)| looks_back && range.has(number));
        let former = former.map(|(range, owner)| (*range, owner.as_str())).take(1);
        self.ranges.with(number).chain(former)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/\nbob:x:1001:1001::/:/\ncarol:x:1002:1002::/:/\n";

    fn table(text: &str) -> Table {
        Table::after(&Table::default(), Some(text), Names::parse(PASSWD))
    }

    #[test]
    fn a_subordinate_number_counts_for_the_user_that_it_was_given_to() {
        let table = table("alice:100000:65536\n1001:165536:65536\n");
        for uid in [1000, 100_000, 165_535] {
            assert_eq!((table.of(uid), table.one(uid)), (vec![1000], 1000), "{uid}");
        }
        assert_eq!(table.of(165_536), [1001]);
        assert_eq!(table.of(1001), [1001]);
        for uid in [0, 5, 99_999, 231_072] {
            assert_eq!((table.of(uid), table.one(uid)), (vec![uid], uid), "none has it");
        }
    }

    #[test]
    fn a_number_of_two_users_counts_for_both() {
        let table = table("alice:100000:65536\nbob:100000:65536\nalice:300000:5\n1000:300000:5\n");
        assert_eq!(table.of(100_007), [1000, 1001]);
        assert_eq!(table.one(100_007), 100_000, "one for all of the range");
        assert_eq!((table.of(1000), table.of(1001)), (vec![1000], vec![1001]));
        assert_eq!(table.of(300_000), [1000], "one user by name and by number");
    }

    #[test]
    fn an_owner_s_owner_counts_and_none_goes_round_for_ever() {
        let table = table("alice:1001:1\nbob:200000:10\ncarol:1002:1\ncarol:400000:9\n");
        assert_eq!(table.of(1001), [1000], "bob is a number of alice's");
        assert_eq!(table.of(200_003), [1000], "and so are bob's numbers");
        assert_eq!(table.of(1002), [1002], "carol is her own");
        assert_eq!(table.of(400_000), [1002]);
        let table = self::table("alice:1001:1\nbob:1000:1\nbob:200000:10\n");
        for uid in [1000, 1001, 200_000] {
            assert_eq!(table.of(uid), [1000], "{uid}");
        }
    }

    #[test]
    fn root_s_numbers_are_one_account_and_never_root_s() {
        let table = table("root:1000:1\nroot:1000000:65536\nalice:0:4294967295\n");
        assert_eq!(table.of(1000), [1000], "a user of the machine");
        assert_eq!(
            table.of(1_000_007),
            [1],
            "who can become root is no one's account"
        );
        assert_eq!(table.unknown(1_000_007), (vec![], true));
        let table = self::table("root:1000000:65536\n0:2000000:65536\nalice:2000000:5\n");
        assert_eq!(table.of(1_000_007), [1_000_000]);
        assert_eq!(table.of(2_000_007), [2_000_000]);
        assert_eq!(table.of(2_000_000), [1000], "alice's all the same");
        assert_eq!(table.of(0), [0]);
    }

    #[test]
    fn an_owner_that_is_no_user_is_an_account() {
        let table = table("ghost:100000:10\nghost:300000:10\n#alice:100000:10\n");
        for uid in [100_003, 300_009] {
            assert_eq!(table.of(uid), [100_000]);
            assert_eq!(table.unknown(uid), (vec!["ghost"], false), "others may know it");
        }
        assert_eq!(table.unknown(7), (vec![], false));
    }

    #[test]
    fn what_was_given_once_counts_until_another_has_it() {
        let names = || Names::parse(PASSWD);
        let first = table("alice:100000:65536\n");
        let emptied = Table::after(&first, Some(""), names());
        assert_eq!(emptied.of(100_007), [1000], "a file that is just being written");
        let again = Table::after(&emptied, Some("carol:500000:1\n"), names());
        assert_eq!(again.of(100_007), [1000]);
        let another = Table::after(&again, Some("bob:100000:10\n"), names());
        assert_eq!(
            (another.of(100_007), another.of(100_010)),
            (vec![1001], vec![1000])
        );
        let mistake = table("alice:1000:65536\n");
        assert_eq!(mistake.of(1001), [1000]);
        assert_eq!(Table::after(&mistake, Some(""), names()).of(1001), [1001]);
        let unfit = Table::after(&first, None, names());
        assert_eq!(unfit.of(100_007), [1000]);
        assert_eq!((unfit.of(1001), unfit.of(7_000_000)), (vec![1001], vec![UNKNOWN]));
    }
}
