//! Physical memory of the virtual memory interface: charged from its creation until the last handle and the last mapping
//! are gone.

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_abi::CUresult;
use divvy_ledger::shared::Worth;

use super::arriving::Arriving;
use super::shared::{self, Key, Share};
use super::{locked, rounded};
use crate::account::{self, Account};

/// One allocation.
struct Block {
    pays: Pays,
    /// What tells it from every other allocation, where the driver's shareable handles do.
    key: Option<Key>,
    /// References by handles.
    handles: u32,
    /// Mappings, and arrays and multicast objects that it is bound to.
    uses: u32,
}

/// Who pays for a block, and how it is known elsewhere.
enum Pays {
    /// It is not device memory, or not of a device that the slice has.
    Nobody,
    /// This process's account, bytes.
    Account(u8, u64),
    /// Somebody of those who share it.
    Shared(Share),
    /// It was imported, and of its size no more is known than has been mapped of it: nothing yet.
    Unmapped(u8),
    /// So much has been mapped of it.
    Partly(Share),
}

/// What a shareable handle tells of the allocation that it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// No other allocation has it.
    pub key: Key,
    /// Its size in bytes, if that is told too.
    pub bytes: Option<u64>,
}

struct Memory {
    next: u64,
    blocks: BTreeMap<u64, Block>,
    /// Block and references of each handle.
    handles: BTreeMap<u64, (u64, u32)>,
    /// Length and block of each mapping, by its address.
    mappings: BTreeMap<u64, (u64, u64)>,
    /// Blocks that are bound to a thing until that ends.
    bound: Vec<(usize, u64)>,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory {
    next: 0,
    blocks: BTreeMap::new(),
    handles: BTreeMap::new(),
    mappings: BTreeMap::new(),
    bound: Vec::new(),
});

/// A reference that was taken out of the books, to be put back if the driver disagrees.
pub(crate) struct Released {
    handle: u64,
    block: u64,
}

/// A block that stays as long as this does.
#[derive(Debug)]
pub(crate) struct Held(u64);

/// Mappings that were taken out.
pub(crate) struct Unmapped(Vec<(u64, u64, u64)>);

/// A new block of `bytes`, which `account` has paid.
pub(crate) fn created(handle: u64, account: Account, bytes: u64) {
    let mut memory = locked(&MEMORY);
    // The driver does not hand out a handle that it has in use, so one that comes back was given up unseen.
    memory.forget(handle);
    memory.add(handle, Pays::Account(account.index(), bytes), None);
}

/// The block of `key`, if this process has it: kept until [`Held::ended`].
pub(crate) fn held(key: Key) -> Option<Held> {
    let mut memory = locked(&MEMORY);
    let block = memory.of_key(key)?;
    memory.used(block);
    Some(Held(block))
}

impl Held {
    /// It need not stay any longer.
    pub fn ended(self) {
        locked(&MEMORY).drop_use(self.0);
    }
}

/// A block that came from outside, to be charged to `account`, if to any, by what `arriving` has paid before. Whether a driver answers a handle that it has
/// answered before, for an allocation that this process has already, is left to it: both are another reference.
///
/// # Errors
/// As [`account::reserve`]; the handle must be given up again.
pub(crate) fn imported(
    handle: u64,
    account: Option<Account>,
    identity: Option<Identity>,
    arriving: Arriving,
) -> Result<(), CUresult> {
    let key = identity.map(|identity| identity.key);
    if locked(&MEMORY).refer_again(handle, key) {
        arriving.not_needed();
        return Ok(());
    }
    let pays = match (account, identity) {
        (
            Some(account),
            Some(Identity {
                key,
                bytes: Some(bytes),
            }),
        ) => Pays::Shared(arriving.paid(account, key, bytes)?),
        (account, _) => {
            arriving.not_needed();
            account.map_or(Pays::Nobody, |account| Pays::Unmapped(account.index()))
        }
    };
    let mut memory = locked(&MEMORY);
    // Another thread may have imported it meanwhile.
    let share = if memory.refer_again(handle, key) {
        pays.into_share()
    } else {
        memory.add(handle, pays, key);
        None
    };
    drop(memory);
    if let Some(share) = share {
        share.ended();
    }
    Ok(())
}

/// The driver has answered a handle for what is mapped at an address.
pub(crate) fn retained(handle: u64, address: u64) {
    let mut memory = locked(&MEMORY);
    let Some(block) = memory.mapped_at(address) else {
        return;
    };
    memory.refer(handle, block);
}

/// Takes a reference away, before the driver is asked to.
pub(crate) fn released(handle: u64) -> Option<Released> {
    let mut memory = locked(&MEMORY);
    let (block, references) = memory.handles.get_mut(&handle)?;
    let block = *block;
    *references -= 1;
    if *references == 0 {
        memory.handles.remove(&handle);
    }
    Some(Released { handle, block })
}

impl Released {
    /// The driver has agreed, or not.
    pub fn then(self, result: CUresult) {
        let mut memory = locked(&MEMORY);
        if result.is_success() {
            memory.drop_handle(self.block);
        } else {
            memory.handles.entry(self.handle).or_insert((self.block, 0)).1 += 1;
        }
    }
}

/// Sees to it that a handle's block is paid for, before `end` bytes of it are mapped. Of an import whose size nobody
/// tells, that is as much as has been mapped at most so far.
///
/// # Errors
/// As [`account::reserve`].
pub(crate) fn paid(handle: u64, end: u64) -> Result<(), CUresult> {
    let bytes = rounded(end);
    let (block, account, key) = {
        let memory = locked(&MEMORY);
        let Some((block, _)) = memory.handles.get(&handle) else {
            return Ok(());
        };
        match memory.blocks.get(block).map(|found| (&found.pays, found.key)) {
            Some((Pays::Unmapped(account), key)) => (*block, *account, key),
            Some((Pays::Partly(share), key)) if share.bytes() < bytes => (*block, share.account(), key),
            _ => return Ok(()),
        }
    };
    let Some(account) = account::paid(account) else {
        return Ok(());
    };
    let key = key.unwrap_or_else(|| Key::of_size(bytes));
    let share = shared::imported(account, key, bytes)?;
    let mut memory = locked(&MEMORY);
    // What was paid for a smaller part is no longer needed; or another thread was first, or the block is gone.
    let old = match memory.blocks.get_mut(&block) {
        Some(found) if found.pays.known_bytes() < bytes => {
            core::mem::replace(&mut found.pays, Pays::Partly(share)).into_share()
        }
        _ => Some(share),
    };
    drop(memory);
    if let Some(old) = old {
        old.ended();
    }
    Ok(())
}

/// The driver has mapped `bytes` of a handle's block.
pub(crate) fn mapped(handle: u64, address: u64, bytes: u64) {
    let mut memory = locked(&MEMORY);
    let Some((block, _)) = memory.handles.get(&handle).copied() else {
        return;
    };
    memory.mappings.insert(address, (bytes, block));
    memory.used(block);
}

/// Takes out every mapping that begins in a range, before the driver is asked to.
pub(crate) fn unmapped(address: u64, bytes: u64) -> Unmapped {
    let mut memory = locked(&MEMORY);
    let within = memory.mappings.range(address..address.saturating_add(bytes));
    let starts: Vec<_> = within
        .map(|(start, (bytes, block))| (*start, *bytes, *block))
        .collect();
    for (start, _, _) in &starts {
        memory.mappings.remove(start);
    }
    Unmapped(starts)
}

impl Unmapped {
    /// The driver has agreed, or not.
    pub fn then(self, result: CUresult) {
        let mut memory = locked(&MEMORY);
        for (start, bytes, block) in self.0 {
            if result.is_success() {
                memory.drop_use(block);
            } else {
                memory.mappings.insert(start, (bytes, block));
            }
        }
    }
}

/// A handle's block stays as long as `thing`: a sparse array, or a multicast object.
pub(crate) fn bound(handle: u64, thing: usize) {
    let mut memory = locked(&MEMORY);
    if let Some((block, _)) = memory.handles.get(&handle).copied() {
        bind(&mut memory, block, thing);
    }
}

/// So does the block that is mapped at an address.
pub(crate) fn bound_at(address: u64, thing: usize) {
    let mut memory = locked(&MEMORY);
    if let Some(block) = memory.mapped_at(address) {
        bind(&mut memory, block, thing);
    }
}

fn bind(memory: &mut Memory, block: u64, thing: usize) {
    if !memory.bound.contains(&(thing, block)) {
        memory.bound.push((thing, block));
        memory.used(block);
    }
}

/// `thing` has ended.
pub(crate) fn unbound(thing: usize) {
    let mut memory = locked(&MEMORY);
    let blocks: Vec<u64> = memory
        .bound
        .extract_if(.., |(holder, _)| *holder == thing)
        .map(|(_, block)| block)
        .collect();
    for block in blocks {
        memory.drop_use(block);
    }
}

/// A handle's block is now known outside this process, by `key` or by its size.
pub(crate) fn exported(handle: u64, key: Option<Key>) {
    let mut memory = locked(&MEMORY);
    let Some((block, _)) = memory.handles.get(&handle).copied() else {
        return;
    };
    let Some(block) = memory.blocks.get_mut(&block) else {
        return;
    };
    block.key = block.key.or(key);
    if let Pays::Account(account, bytes) = block.pays
        && let Some(account) = account::paid(account)
    {
        let key = key.unwrap_or_else(|| Key::of_size(bytes));
        block.pays = Pays::Shared(shared::exported(account, key, bytes, Worth::whole(bytes)));
    }
}

/// Takes over what the dead have paid for and this process still holds.
pub(crate) fn follow() {
    for block in locked(&MEMORY).blocks.values_mut() {
        if let Pays::Shared(share) | Pays::Partly(share) = &mut block.pays {
            let _settled = share.settle();
        }
    }
}

impl Pays {
    /// Bytes that somebody pays for; all there are where the size is known.
    fn known_bytes(&self) -> u64 {
        match self {
            Self::Unmapped(_) => 0,
            Self::Partly(share) => share.bytes(),
            Self::Nobody | Self::Account(..) | Self::Shared(_) => u64::MAX,
        }
    }

    fn into_share(self) -> Option<Share> {
        match self {
            Self::Shared(share) | Self::Partly(share) => Some(share),
            Self::Nobody | Self::Account(..) | Self::Unmapped(_) => None,
        }
    }
}

impl Memory {
    fn add(&mut self, handle: u64, pays: Pays, key: Option<Key>) {
        self.next += 1;
        let block = self.next;
        self.blocks.insert(
            block,
            Block {
                pays,
                key,
                handles: 0,
                uses: 0,
            },
        );
        self.refer(handle, block);
    }

    /// Forgets what is known of a handle.
    fn forget(&mut self, handle: u64) {
        if let Some((block, references)) = self.handles.remove(&handle) {
            for _ in 0..references {
                self.drop_handle(block);
            }
        }
    }

    /// Notes that an import answered `handle` for the allocation of `key`, if this process has that already.
    fn refer_again(&mut self, handle: u64, key: Option<Key>) -> bool {
        let by_handle = self.handles.get(&handle).map(|(block, _)| *block);
        let known = by_handle.and_then(|block| self.blocks.get(&block)?.key);
        let block = match (by_handle, key) {
            // It stands for something else now: the other was given up unseen.
            (Some(_), Some(key)) if known.is_some_and(|known| known != key) => {
                self.forget(handle);
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

    fn used(&mut self, block: u64) {
        if let Some(block) = self.blocks.get_mut(&block) {
            block.uses += 1;
        }
    }

    fn drop_use(&mut self, block: u64) {
        if let Some(found) = self.blocks.get_mut(&block) {
            found.uses = found.uses.saturating_sub(1);
            self.end(block);
        }
    }

    fn drop_handle(&mut self, block: u64) {
        if let Some(found) = self.blocks.get_mut(&block) {
            found.handles = found.handles.saturating_sub(1);
            self.end(block);
        }
    }

    /// Gives a block back once nothing refers to it.
    fn end(&mut self, block: u64) {
        let unused = |found: &Block| found.handles == 0 && found.uses == 0;
        if !self.blocks.get(&block).is_some_and(unused) {
            return;
        }
        match self.blocks.remove(&block).map(|found| found.pays) {
            Some(Pays::Account(account, bytes)) => {
                if let Some(account) = account::paid(account) {
                    account.give_back(bytes);
                }
            }
            Some(Pays::Shared(share) | Pays::Partly(share)) => share.ended(),
            Some(Pays::Nobody | Pays::Unmapped(_)) | None => {}
        }
    }
}
