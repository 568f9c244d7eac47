//! Physical memory of the virtual memory interface: charged from its creation until the last handle and the last
//! mapping are gone.
//!
//! Physical memory that is imported by a shareable handle is charged before the driver is asked ([`Importing`]). If
//! only the handle still refers to it, the import is what takes it from the device. The driver reports its device only
//! after the import; until then its bytes are reserved on every device of the slice.

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_abi::CUresult;
use divvy_ledger::shared::Residual;

use crate::environment::{Account, Environment, Reserve};
use crate::key::Key;
use crate::lock::locked;
use crate::shared::{Share, Shares};
use crate::units::rounded;

/// One allocation.
struct Block {
    cost: Cost,
    /// Its unique key, if the driver's shareable handles provide one.
    key: Option<Key>,
    /// References by handles.
    handles: u32,
    /// Mappings, and arrays and multicast objects that it is bound to.
    uses: u32,
}

/// The charge of a block in this process.
enum Cost {
    /// None: it is not device memory, or its device is not in the slice.
    Free,
    /// This process's account is charged so many bytes.
    Account(u8, u64),
    /// One of the processes that share it is charged.
    Shared(Share),
    /// None yet: it was imported, and only the part that was mapped of it tells its size.
    Unmapped(u8),
    /// The size of the part that was mapped of it.
    Partly(Share),
}

/// The information in a shareable handle about its allocation.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its key, which no other allocation has.
    pub key: Key,
    /// Its size in bytes, if the handle tells it.
    pub bytes: Option<u64>,
}

/// The provisional charge of an import until the driver has replied.
#[derive(Debug)]
pub(crate) enum Importing {
    /// This process has the block already, and keeps it until then.
    Held(u64),
    /// Another process of the slice is charged.
    Joined(Share),
    /// Bytes reserved from accounts, by index; none if the size is unknown.
    Reserved(Vec<(u8, u64)>),
}

pub(crate) struct Physical(Mutex<Table>);

struct Table {
    next: u64,
    blocks: BTreeMap<u64, Block>,
    /// Block and references of each handle.
    handles: BTreeMap<u64, (u64, u32)>,
    /// Length and block of each mapping, by its address.
    mappings: BTreeMap<u64, (u64, u64)>,
    /// Blocks that are bound to another object until it ends.
    bound: Vec<(usize, u64)>,
}

/// A removed reference, to be restored if the driver refuses.
#[derive(Debug)]
pub(crate) struct Released {
    handle: u64,
    block: u64,
}

/// Start, length and block of removed mappings.
pub(crate) type Unmapped = Vec<(u64, u64, u64)>;

fn give_back<E: Environment>(shares: &Shares<E>, account: u8, bytes: u64) {
    if let Some(account) = shares.charged.env().account(account) {
        account.give_back(bytes);
    }
}

impl Physical {
    pub const fn new() -> Self {
        Self(Mutex::new(Table {
            next: 0,
            blocks: BTreeMap::new(),
            handles: BTreeMap::new(),
            mappings: BTreeMap::new(),
            bound: Vec::new(),
        }))
    }

    /// Changes the table, and then ends the charges of blocks without references.
    fn change<E: Environment, T>(
        &self,
        shares: &Shares<E>,
        change: impl FnOnce(&mut Table, &mut Vec<Cost>) -> T,
    ) -> T {
        let mut ended = Vec::new();
        let answer = change(&mut locked(&self.0), &mut ended);
        ended.into_iter().for_each(|cost| cost.end(shares));
        answer
    }

    /// A new block of `bytes`, charged to `account`.
    pub fn created<E: Environment>(&self, shares: &Shares<E>, handle: u64, account: u8, bytes: u64) {
        self.change(shares, |table, ended| {
            // The driver hands out no handle that is in use, so an existing one was released without the limiter seeing
            // it.
            table.forget(handle, ended);
            table.add(handle, Cost::Account(account, bytes), None);
        });
    }

    /// The driver is about to be asked to import an allocation by a shareable handle.
    ///
    /// # Errors
    /// As [`Reserve::reserve`]; the driver is not to be asked.
    pub fn begin_import<E: Environment>(
        &self,
        shares: &Shares<E>,
        room: &impl Reserve<E::Account>,
        identity: Option<Identity>,
    ) -> Result<Importing, CUresult> {
        let Some(Identity { key, bytes }) = identity else {
            return Ok(Importing::Reserved(Vec::new()));
        };
        if let Some(block) = locked(&self.0).hold(key) {
            return Ok(Importing::Held(block));
        }
        let Some(bytes) = bytes else {
            return Ok(Importing::Reserved(Vec::new()));
        };
        let env = shares.charged.env();
        let bytes = |account| rounded(shares.charged.extents().whole_pages(account, bytes));
        let joined = |account| shares.joined(account, key, bytes(account));
        if let Some(share) = env.accounts().find_map(joined) {
            return Ok(Importing::Joined(share));
        }
        let mut reserved = Vec::new();
        for account in env.accounts() {
            let bytes = bytes(account);
            if let Err(code) = room.reserve(account, bytes, "an imported allocation") {
                self.end_import(shares, Importing::Reserved(reserved));
                return Err(code);
            }
            reserved.push((account.index(), bytes));
        }
        Ok(Importing::Reserved(reserved))
    }

    /// The driver has refused, or no charge is needed. No lock is held.
    pub fn end_import<E: Environment>(&self, shares: &Shares<E>, importing: Importing) {
        match importing {
            Importing::Held(block) => self.change(shares, |table, ended| table.drop_use(block, ended)),
            Importing::Joined(share) => shares.end(share),
            Importing::Reserved(reserved) => {
                for (account, bytes) in reserved {
                    give_back(shares, account, bytes);
                }
            }
        }
    }

    /// The allocation is on the device of `account`, and has `bytes`. No lock is held.
    ///
    /// # Errors
    /// As [`Reserve::reserve`], if more is needed than was assumed.
    fn pay_import<E: Environment>(
        &self,
        shares: &Shares<E>,
        room: &impl Reserve<E::Account>,
        importing: Importing,
        (account, key, bytes): (E::Account, Key, u64),
    ) -> Result<Share, CUresult> {
        match importing {
            Importing::Joined(share) if share.account() == account.index() => {
                return Ok(share.with_bytes(bytes));
            }
            Importing::Reserved(mut reserved) => {
                let enough = |(other, has): &(u8, u64)| *other == account.index() && *has >= bytes;
                let enough = reserved.iter().position(enough);
                let enough = enough.map(|at| reserved.swap_remove(at));
                self.end_import(shares, Importing::Reserved(reserved));
                if let Some((_, has)) = enough {
                    account.give_back(has - bytes);
                    return Ok(shares.reserved(account, key, bytes));
                }
            }
            other => self.end_import(shares, other),
        }
        shares.imported(room, account, key, bytes)
    }

    /// A block was imported, to be charged to `account`, if any, from the provisional charge. For an allocation that
    /// this process has already, a driver may return a new handle or an earlier one: both count as another reference.
    ///
    /// # Errors
    /// As [`Reserve::reserve`]; the handle must be released again.
    pub fn imported<E: Environment>(
        &self,
        shares: &Shares<E>,
        room: &impl Reserve<E::Account>,
        handle: u64,
        (account, identity): (Option<E::Account>, Option<Identity>),
        importing: Importing,
    ) -> Result<(), CUresult> {
        let key = identity.map(|identity| identity.key);
        if self.change(shares, |table, ended| table.refer_again(handle, key, ended)) {
            self.end_import(shares, importing);
            return Ok(());
        }
        let bytes = identity.and_then(|identity| identity.bytes);
        let cost = match (account, key, bytes) {
            (Some(account), Some(key), Some(bytes)) => {
                Cost::Shared(self.pay_import(shares, room, importing, (account, key, bytes))?)
            }
            (account, ..) => {
                self.end_import(shares, importing);
                account.map_or(Cost::Free, |account| Cost::Unmapped(account.index()))
            }
        };
        self.change(shares, |table, ended| {
            // Another thread may have imported it meanwhile.
            if table.refer_again(handle, key, ended) {
                ended.push(cost);
            } else {
                table.add(handle, cost, key);
            }
        });
        Ok(())
    }

    /// The driver has returned a handle for the memory mapped at an address.
    pub fn retained(&self, handle: u64, address: u64) {
        let mut table = locked(&self.0);
        if let Some(block) = table.mapped_at(address) {
            table.refer(handle, block);
        }
    }

    /// Removes a reference, before the driver is asked to.
    pub fn release(&self, handle: u64) -> Option<Released> {
        let mut table = locked(&self.0);
        let (block, references) = table.handles.get_mut(&handle)?;
        let block = *block;
        *references -= 1;
        if *references == 0 {
            table.handles.remove(&handle);
        }
        Some(Released { handle, block })
    }

    /// The driver has agreed to that, or refused.
    pub fn released<E: Environment>(
        &self,
        shares: &Shares<E>,
        Released { handle, block }: Released,
        agreed: bool,
    ) {
        self.change(shares, |table, ended| {
            if agreed {
                table.drop_handle(block, ended);
            } else {
                table.handles.entry(handle).or_insert((block, 0)).1 += 1;
            }
        });
    }

    /// Ensures that a handle's block is charged before `end` bytes of it are mapped. An import of unknown size is
    /// charged for the largest part that was mapped so far.
    ///
    /// # Errors
    /// As [`Reserve::reserve`].
    pub fn pay<E: Environment>(
        &self,
        shares: &Shares<E>,
        room: &impl Reserve<E::Account>,
        handle: u64,
        end: u64,
    ) -> Result<(), CUresult> {
        let bytes = rounded(end);
        let Some((block, account, key)) = locked(&self.0).lacks(handle, bytes) else {
            return Ok(());
        };
        let Some(account) = shares.charged.env().account(account) else {
            return Ok(());
        };
        let key = key.unwrap_or_else(|| Key::of_size(bytes));
        let share = shares.imported(room, account, key, bytes)?;
        self.change(shares, |table, ended| {
            // The charge for a smaller part is no longer needed; or another thread was first, or the block is gone.
            let cost = match table.blocks.get_mut(&block) {
                Some(found) if found.cost.known_bytes() < bytes => {
                    core::mem::replace(&mut found.cost, Cost::Partly(share))
                }
                _ => Cost::Partly(share),
            };
            ended.push(cost);
        });
        Ok(())
    }

    /// The driver has mapped `bytes` of a handle's block.
    pub fn mapped(&self, handle: u64, address: u64, bytes: u64) {
        let mut table = locked(&self.0);
        if let Some((block, _)) = table.handles.get(&handle).copied() {
            table.mappings.insert(address, (bytes, block));
            table.used(block);
        }
    }

    /// Removes every mapping that begins in a range, before the driver is asked to.
    pub fn unmap(&self, address: u64, bytes: u64) -> Unmapped {
        let mut table = locked(&self.0);
        let within = table
            .mappings
            .extract_if(address..address.saturating_add(bytes), |_, _| true);
        within
            .map(|(start, (bytes, block))| (start, bytes, block))
            .collect()
    }

    /// The driver has agreed to that, or refused.
    pub fn unmapped<E: Environment>(&self, shares: &Shares<E>, unmapped: Unmapped, agreed: bool) {
        self.change(shares, |table, ended| {
            for (start, bytes, block) in unmapped {
                if agreed {
                    table.drop_use(block, ended);
                } else {
                    table.mappings.insert(start, (bytes, block));
                }
            }
        });
    }

    /// A handle's block stays as long as `thing`: a sparse array, or a multicast object.
    pub fn bind(&self, handle: u64, thing: usize) {
        let mut table = locked(&self.0);
        if let Some((block, _)) = table.handles.get(&handle).copied() {
            table.bind(block, thing);
        }
    }

    /// So does the block that is mapped at an address.
    pub fn bind_at(&self, address: u64, thing: usize) {
        let mut table = locked(&self.0);
        if let Some(block) = table.mapped_at(address) {
            table.bind(block, thing);
        }
    }

    /// `thing` has ended.
    pub fn unbind<E: Environment>(&self, shares: &Shares<E>, thing: usize) {
        self.change(shares, |table, ended| {
            let of_thing = |(holder, _): &mut (usize, u64)| *holder == thing;
            let bound: Vec<_> = table.bound.extract_if(.., of_thing).collect();
            for (_, block) in bound {
                table.drop_use(block, ended);
            }
        });
    }

    /// A handle's block is now known outside this process, by `key` or by its size.
    pub fn exported<E: Environment>(&self, shares: &Shares<E>, handle: u64, key: Option<Key>) {
        let mut table = locked(&self.0);
        let Some((block, _)) = table.handles.get(&handle).copied() else {
            return;
        };
        let Some(block) = table.blocks.get_mut(&block) else {
            return;
        };
        block.key = block.key.or(key);
        if let Cost::Account(account, bytes) = block.cost
            && let Some(account) = shares.charged.env().account(account)
        {
            let key = key.unwrap_or_else(|| Key::of_size(bytes));
            block.cost = Cost::Shared(shares.exported(account, key, bytes, Residual::whole(bytes)));
        }
    }

    /// Takes over charges of dead processes for memory that this process still holds.
    pub fn follow<E: Environment>(&self, shares: &Shares<E>) {
        for block in locked(&self.0).blocks.values_mut() {
            if let Cost::Shared(share) | Cost::Partly(share) = &mut block.cost {
                shares.settle(share);
            }
        }
    }
}

impl Cost {
    fn end<E: Environment>(self, shares: &Shares<E>) {
        match self {
            Self::Account(account, bytes) => give_back(shares, account, bytes),
            Self::Shared(share) | Self::Partly(share) => shares.end(share),
            Self::Free | Self::Unmapped(_) => {}
        }
    }

    /// The charged bytes; all bytes if the size is known.
    fn known_bytes(&self) -> u64 {
        match self {
            Self::Unmapped(_) => 0,
            Self::Partly(share) => share.bytes(),
            Self::Free | Self::Account(..) | Self::Shared(_) => u64::MAX,
        }
    }
}

impl Table {
    fn add(&mut self, handle: u64, cost: Cost, key: Option<Key>) {
        self.next += 1;
        let block = self.next;
        self.blocks.insert(
            block,
            Block {
                cost,
                key,
                handles: 0,
                uses: 0,
            },
        );
        self.refer(handle, block);
    }

    /// Forgets a handle.
    fn forget(&mut self, handle: u64, ended: &mut Vec<Cost>) {
        if let Some((block, references)) = self.handles.remove(&handle) {
            for _ in 0..references {
                self.drop_handle(block, ended);
            }
        }
    }

    /// Records that an import returned `handle` for the allocation of `key`, if this process has that already.
    fn refer_again(&mut self, handle: u64, key: Option<Key>, ended: &mut Vec<Cost>) -> bool {
        let by_handle = self.handles.get(&handle).map(|(block, _)| *block);
        let known = by_handle.and_then(|block| self.blocks.get(&block)?.key);
        let block = match (by_handle, key) {
            // The handle stands for another allocation now: the first was released without the limiter seeing it.
            (Some(_), Some(key)) if known.is_some_and(|known| known != key) => {
                self.forget(handle, ended);
                self.of_key(key)
            }
            (Some(block), _) => Some(block),
            (None, Some(key)) => self.of_key(key),
            (None, None) => None,
        };
        if let Some(block) = block {
            self.refer(handle, block);
        }
        block.is_some()
    }

    /// Block, account and key of a handle whose block is not charged up to `bytes`.
    fn lacks(&self, handle: u64, bytes: u64) -> Option<(u64, u8, Option<Key>)> {
        let (block, _) = self.handles.get(&handle)?;
        let found = self.blocks.get(block)?;
        let account = match &found.cost {
            Cost::Unmapped(account) => *account,
            Cost::Partly(share) if share.bytes() < bytes => share.account(),
            _ => return None,
        };
        Some((*block, account, found.key))
    }

    /// Keeps the block of `key`, if this process has it.
    fn hold(&mut self, key: Key) -> Option<u64> {
        let block = self.of_key(key)?;
        self.used(block);
        Some(block)
    }

    fn of_key(&self, key: Key) -> Option<u64> {
        let found = self.blocks.iter().find(|(_, block)| block.key == Some(key))?;
        Some(*found.0)
    }

    fn refer(&mut self, handle: u64, block: u64) {
        self.handles.entry(handle).or_insert((block, 0)).1 += 1;
        if let Some(block) = self.blocks.get_mut(&block) {
            block.handles += 1;
        }
    }

    fn mapped_at(&self, address: u64) -> Option<u64> {
        let (start, (bytes, block)) = self.mappings.range(..=address).next_back()?;
        (address - start < *bytes).then_some(*block)
    }

    fn bind(&mut self, block: u64, thing: usize) {
        if !self.bound.contains(&(thing, block)) {
            self.bound.push((thing, block));
            self.used(block);
        }
    }

    fn used(&mut self, block: u64) {
        if let Some(block) = self.blocks.get_mut(&block) {
            block.uses += 1;
        }
    }

    fn drop_use(&mut self, block: u64, ended: &mut Vec<Cost>) {
        if let Some(found) = self.blocks.get_mut(&block) {
            found.uses = found.uses.saturating_sub(1);
            self.end(block, ended);
        }
    }

    fn drop_handle(&mut self, block: u64, ended: &mut Vec<Cost>) {
        if let Some(found) = self.blocks.get_mut(&block) {
            found.handles = found.handles.saturating_sub(1);
            self.end(block, ended);
        }
    }

    /// Removes a block without references.
    fn end(&mut self, block: u64, ended: &mut Vec<Cost>) {
        let unused = |found: &Block| found.handles == 0 && found.uses == 0;
        if self.blocks.get(&block).is_some_and(unused) {
            ended.extend(self.blocks.remove(&block).map(|found| found.cost));
        }
    }
}
