//! Numbers of the pages that exported allocations share with others. By these numbers the ledger counts a page once
//! when it adds up the residual charges of a dead process ([`divvy_ledger::shared`]).

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_ledger::shared::PAGE_NUMBERS;

use crate::lock::locked;
use crate::pages::PageKey;

pub(crate) struct PageNumbers(Mutex<Numbers>);

struct Numbers {
    /// Of each numbered page, by its key in the map of pages.
    of: BTreeMap<PageKey, u16>,
    /// How many allocations have each number, from 1 on.
    users: Vec<u32>,
}

/// The numbers of the pages that one allocation lies in; 0 for none. [`PageNumbers::leave`] returns them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbered(pub [u16; 2]);

impl PageNumbers {
    pub const fn new() -> Self {
        Self(Mutex::new(Numbers::NONE))
    }

    /// Adds an exported allocation to these pages. A page gets 0 if no number is left.
    pub fn enter(&self, keys: [Option<PageKey>; 2]) -> Numbered {
        let mut numbers = locked(&self.0);
        Numbered(keys.map(|key| key.and_then(|key| numbers.enter(key)).unwrap_or(0)))
    }

    /// The allocation no longer has importers.
    pub fn leave(&self, Numbered(pages): Numbered) {
        if pages != [0; 2] {
            let mut numbers = locked(&self.0);
            pages.into_iter().for_each(|number| numbers.leave(number));
        }
    }

    /// The allocation was freed while it has importers: the next allocation at its addresses lies in other pages.
    pub fn leave_addresses(&self, numbered: Numbered) {
        locked(&self.0)
            .of
            .retain(|_, number| !numbered.0.contains(number));
    }
}

impl Numbers {
    const NONE: Self = Self {
        of: BTreeMap::new(),
        users: Vec::new(),
    };

    /// Adds an allocation to the page of this key. Returns its number; `None` if no number is left.
    fn enter(&mut self, key: PageKey) -> Option<u16> {
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
    use crate::owner::{Extent, Owned, Owner};
    use crate::pages::Parts;

    fn key(at: u64) -> PageKey {
        let extent = Extent {
            pointer: at << 21,
            bytes: 512,
        };
        let owner = Owner::Account(0);
        let parts = Parts::of(Owned { owner, extent }, 2 << 20);
        parts.keys().next().expect("a part")
    }

    #[test]
    fn a_page_has_one_number_for_as_long_as_any_lie_in_it() {
        let mut numbers = Numbers::NONE;
        assert_eq!(
            [7, 8, 7].map(|at| numbers.enter(key(at))),
            [Some(1), Some(2), Some(1)]
        );
        numbers.leave(1);
        assert_eq!(numbers.enter(key(9)), Some(3), "one is in the first still");
        numbers.leave(1);
        assert_eq!(numbers.enter(key(10)), Some(1));
        numbers.leave(0);
        for at in 100..100 + u64::from(PAGE_NUMBERS) - 4 {
            assert!(numbers.enter(key(at)).is_some());
        }
        assert_eq!(numbers.enter(key(99)), None);
    }
}
