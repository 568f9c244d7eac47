//! Numbers of the pages that exported allocations lie in beside others: by them, whoever adds up what a dead process's
//! allocations keep from the device counts each page once ([`divvy_ledger::shared::Worth`]).

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_ledger::shared::{PAGE_NUMBERS, Worth};

use super::held::Piece;
use super::{MANAGED, apart, grain, locked};
use crate::account::Account;

struct Numbers {
    /// Of each page that is known by its key in the map of pages.
    of: BTreeMap<u64, u16>,
    /// How many have each number, from 1 on.
    users: Vec<u32>,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers {
    of: BTreeMap::new(),
    users: Vec::new(),
});

/// The numbers of the pages that one allocation lies in, for as long as this does; 0 for none.
#[derive(Debug, Default)]
pub(crate) struct Numbered([u16; 2]);

/// What a piece that `account` has paid for as `payer` is worth, and the numbers of its pages.
pub(crate) fn worth(account: Account, payer: u16, piece: Piece) -> (Worth, Numbered) {
    if payer >= MANAGED {
        return (Worth::whole(piece.bytes), Numbered::default());
    }
    let page = grain::settled_page(account);
    let (mut own_bytes, keys) = apart::parts(account, payer, piece);
    let mut numbers = locked(&NUMBERS);
    let pages = keys.map(|key| {
        let number = key.map(|key| numbers.enter(key).unwrap_or(0));
        if number == Some(0) {
            // Without a number it counts for each that lies in it.
            own_bytes += page;
        }
        number.unwrap_or(0)
    });
    let worth = Worth {
        own_bytes,
        pages,
        page_bytes: page,
    };
    (worth, Numbered(pages))
}

impl Numbered {
    /// The allocation was freed, and others have it open: what comes to its addresses lies in other pages.
    pub fn leave_addresses(&self) {
        locked(&NUMBERS).of.retain(|_, number| !self.0.contains(number));
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        if self.0 != [0; 2] {
            let mut numbers = locked(&NUMBERS);
            self.0.into_iter().for_each(|number| numbers.leave(number));
        }
    }
}

impl Numbers {
    /// One more in the page of this key. Answers its number; `None` where there are no more.
    fn enter(&mut self, key: u64) -> Option<u16> {
        let number = match self.of.get(&key) {
            Some(number) => *number,
            None => {
                let unused = self.users.iter().position(|users| *users == 0);
                let at = unused.unwrap_or(self.users.len());
                let number = u16::try_from(at + 1)
                    .ok()
                    .filter(|number| *number < PAGE_NUMBERS)?;
                if unused.is_none() {
                    self.users.push(0);
                }
                self.of.insert(key, number);
                number
            }
        };
        self.users[usize::from(number) - 1] += 1;
        Some(number)
    }

    fn leave(&mut self, number: u16) {
        let Some(at) = usize::from(number).checked_sub(1) else {
            return;
        };
        self.users[at] -= 1;
        if self.users[at] == 0 {
            self.of.retain(|_, other| *other != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_number_for_as_long_as_any_lie_in_it() {
        let mut numbers = Numbers {
            of: BTreeMap::new(),
            users: Vec::new(),
        };
        assert_eq!(
            [7, 8, 7].map(|key| numbers.enter(key)),
            [Some(1), Some(2), Some(1)]
        );
        numbers.leave(1);
        assert_eq!(numbers.enter(9), Some(3), "one is in the first still");
        numbers.leave(1);
        assert_eq!(numbers.enter(10), Some(1));
        numbers.leave(0);
        for key in 100..100 + u64::from(PAGE_NUMBERS) - 4 {
            assert!(numbers.enter(key).is_some());
        }
        assert_eq!(numbers.enter(99), None);
    }
}
