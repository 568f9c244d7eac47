//! Pages of allocations that were freed, or are about to be, while importers may have them open.
//!
//! The device keeps such pages, and the driver reuses their addresses: the next allocation there lies in other pages.
//! So an allocation with importers is detached before the driver is asked to free it. It leaves the map of pages by
//! address, and has a charge of its own. In stream order it leaves the map when the stream reaches the free. A page
//! that it shared with other allocations stays charged to them until the last has left. From then on the detached
//! allocations are charged for it, as long as there are any.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::locked;
use crate::owner::Owned;
use crate::pages::{PageKey, PageMap, Parts};

/// An allocation whose pages are counted separately.
#[derive(Debug)]
pub(crate) struct Detached {
    pub owned: Owned,
    /// Index of the account that is charged, for itself or for a pool.
    pub account: u8,
    parts: Parts,
    /// It is still in the map of pages.
    in_pages: bool,
    /// It has importers, and was freed: residual.
    pub residual: bool,
    /// Groups of the pages that it covered in part.
    groups: [Option<u64>; 2],
}

/// Bytes of pages that are no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Pages of allocations by address.
    pub by_address: u64,
    /// Pages that were charged to detached allocations.
    pub detached: u64,
}

/// The detached allocations that lay in one page.
struct Group {
    number: u64,
    page: PageKey,
    /// Other allocations are still in the page, and it is charged for them.
    inhabited: bool,
    /// Bytes that are charged for the group itself.
    charged: u64,
    members: u32,
}

/// All groups.
pub(crate) struct Groups {
    table: Mutex<Table>,
    count: AtomicUsize,
}

struct Table {
    next: u64,
    all: Vec<Group>,
}

impl Groups {
    pub const fn new() -> Self {
        Self {
            table: Mutex::new(Table {
                next: 0,
                all: Vec::new(),
            }),
            count: AtomicUsize::new(0),
        }
    }

    /// Whether there are any.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    fn count(&self, table: &Table) {
        self.count.store(table.all.len(), Ordering::Relaxed);
    }

    /// Whether one of these pages is shared with a detached allocation: then this one is detached as well.
    #[cold]
    pub fn touch(&self, parts: Parts) -> bool {
        let table = locked(&self.table);
        parts.keys().any(|key| table.inhabited(key).is_some())
    }

    /// Detaches an allocation; it takes effect when it leaves the map of pages ([`Groups::leave_pages`]).
    pub fn add(&self, owned: Owned, account: u8, parts: Parts) -> Detached {
        let mut table = locked(&self.table);
        let groups = parts.shared.map(|key| key.map(|key| table.join(key)));
        self.count(&table);
        Detached {
            owned,
            account,
            parts,
            in_pages: true,
            residual: false,
            groups,
        }
    }

    /// An allocation has left these pages by address. Returns how many bytes of them stay charged, for the detached
    /// allocations in them.
    #[cold]
    pub fn kept(&self, pages: &PageMap, parts: Parts, page: u64) -> u64 {
        let mut table = locked(&self.table);
        let mut kept = 0;
        for key in parts.keys().filter(|key| !pages.holds_part(*key)) {
            if let Some(at) = table.inhabited(key) {
                table.all[at].emptied(page);
                kept += page;
            }
        }
        kept
    }

    /// An allocation has come to these pages by address. Returns how many bytes of them were charged for detached
    /// allocations until now.
    #[cold]
    pub fn revived(&self, parts: Parts) -> u64 {
        let mut table = locked(&self.table);
        parts.keys().map(|key| table.revive(key)).sum()
    }

    /// A detached allocation is no longer in its pages by address. Returns the bytes of pages that are charged for the
    /// detached allocations in them from now on.
    pub fn leave_pages(&self, detached: &mut Detached, pages: &PageMap, page: u64) -> u64 {
        if !core::mem::take(&mut detached.in_pages) {
            return 0;
        }
        let mut table = locked(&self.table);
        let mut emptied = 0;
        for (key, number) in detached.parts.shared.into_iter().zip(detached.groups) {
            if let (Some(key), Some(number)) = (key, number)
                && pages.leave_part(key)
            {
                if let Some(group) = table.numbered(number) {
                    group.emptied(page);
                }
                emptied += page;
            }
        }
        emptied
    }

    /// A detached allocation no longer has importers.
    pub fn remove(&self, detached: &Detached) -> Ended {
        let mut table = locked(&self.table);
        let numbers = detached.groups.into_iter().flatten();
        let charged: u64 = numbers.map(|number| table.leave(number)).sum();
        self.count(&table);
        let whole = detached.parts.whole;
        if detached.residual {
            Ended {
                by_address: 0,
                detached: whole + charged,
            }
        } else {
            Ended {
                by_address: whole,
                detached: charged,
            }
        }
    }

    /// The driver has not freed it. Returns the bytes of pages that allocations by address hold again, and the bytes
    /// that detached ones no longer hold.
    pub fn undo(&self, detached: &Detached, pages: &PageMap) -> (u64, u64) {
        let (mut again, mut surplus) = (0, 0);
        let mut table = locked(&self.table);
        for (key, number) in detached.parts.shared.into_iter().zip(detached.groups) {
            let (Some(key), Some(number)) = (key, number) else {
                continue;
            };
            // The group's charge becomes the page's again, unless another allocation has entered the page as a new one
            // meanwhile.
            if !detached.in_pages && pages.enter_part(key).unwrap_or(false) {
                again += table.numbered(number).map_or(0, Group::revive);
            }
            surplus += table.leave(number);
        }
        self.count(&table);
        (again, surplus)
    }
}

impl Detached {
    /// Bytes of pages that only this allocation covers.
    pub fn whole_bytes(&self) -> u64 {
        self.parts.whole
    }
}

impl Group {
    /// No allocation is in the page by address any more.
    fn emptied(&mut self, page: u64) {
        self.inhabited = false;
        self.charged = page;
    }

    /// Its page is charged for other allocations again. Returns the group's charge.
    fn revive(&mut self) -> u64 {
        self.inhabited = true;
        core::mem::take(&mut self.charged)
    }
}

impl Table {
    /// The group of a page that other allocations are in.
    fn inhabited(&self, page: PageKey) -> Option<usize> {
        let mut all = self.all.iter();
        all.position(|group| group.inhabited && group.page == page)
    }

    fn numbered(&mut self, number: u64) -> Option<&mut Group> {
        self.all.iter_mut().find(|group| group.number == number)
    }

    /// Adds a member to the group of a page. Returns its number.
    fn join(&mut self, page: PageKey) -> u64 {
        let at = self.inhabited(page).unwrap_or_else(|| {
            self.next += 1;
            self.all.push(Group {
                number: self.next,
                page,
                inhabited: true,
                charged: 0,
                members: 0,
            });
            self.all.len() - 1
        });
        self.all[at].members += 1;
        self.all[at].number
    }

    /// Removes a member. Returns the group's charge, if that was the last.
    fn leave(&mut self, number: u64) -> u64 {
        let Some(at) = self.all.iter().position(|group| group.number == number) else {
            return 0;
        };
        self.all[at].members -= 1;
        if self.all[at].members > 0 {
            return 0;
        }
        self.all.swap_remove(at).charged
    }

    /// Other allocations are in this page again.
    fn revive(&mut self, page: PageKey) -> u64 {
        let mut all = self.all.iter_mut();
        all.find(|group| !group.inhabited && group.page == page)
            .map_or(0, Group::revive)
    }
}
