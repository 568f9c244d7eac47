//! Memory that comes from other processes or goes to them: exported pointers, their imports, external memory, and
//! physical memory with its handles.
//!
//! Opening a pointer takes nothing from the device. So its size is queried after it, and it is closed again if it
//! cannot be charged.

use divvy_abi::{CUdeviceptr, CUresult};

use crate::charges::Charges;
use crate::environment::{Account, Environment};
use crate::key::Key;
use crate::physical::Identity;
use crate::shared::Share;
use crate::units::rounded;

impl<E: Environment> Charges<E> {
    /// From now on other processes can open the allocation that contains `pointer`, by `key`.
    pub fn exported(&self, pointer: CUdeviceptr, key: Key) {
        // An exported handle stands for the whole allocation.
        let base = self.env().range_of(pointer).map_or(pointer, |(base, _)| base);
        let live = self.live();
        live.imports.exported(&live.shares, base, key);
    }

    /// Opens by `call` another process's allocation, which has the key `key` and ends with `context`; `pointer` reads
    /// its address after a success. If it cannot be charged, `close` undoes the call. It is charged to its own device,
    /// or to `account` if the driver does not report the device.
    pub fn open(
        &self,
        account: E::Account,
        (key, context): (Key, usize),
        call: impl FnOnce() -> CUresult,
        pointer: impl FnOnce() -> CUdeviceptr,
        close: impl FnOnce(CUdeviceptr) -> CUresult,
    ) -> CUresult {
        // Before the call: if the owner frees it meanwhile, the owner stays charged. The device does not matter, since
        // its account's table has the entry.
        let joined = self.joined(self.env().accounts(), key, 0);
        let result = call();
        if !result.is_success() {
            self.end_share(joined);
            return result;
        }
        let pointer = pointer();
        if let Err(code) = self.opened(account, (key, context), pointer, joined) {
            let _closed = close(pointer);
            return code;
        }
        result
    }

    fn opened(
        &self,
        account: E::Account,
        (key, context): (Key, usize),
        pointer: CUdeviceptr,
        joined: Option<Share>,
    ) -> Result<(), CUresult> {
        let on = match self.env().device_of(pointer) {
            Some(device) => self.env().of_device(device),
            None => Ok(Some(account)),
        };
        let Ok(Some(account)) = on else {
            self.end_share(joined);
            return on.map(drop);
        };
        // Bytes of all pages that the allocation takes from its device, wherever it lies in them.
        let range = self.env().range_of(pointer);
        let bytes = range.map_or(0, |(_, bytes)| self.extents().most(account, bytes));
        let live = self.live();
        live.imports.imported(
            &live.shares,
            self,
            pointer,
            (account, key, bytes),
            joined,
            context,
        )
    }

    fn joined(&self, accounts: impl Iterator<Item = E::Account>, key: Key, bytes: u64) -> Option<Share> {
        let mut accounts = accounts;
        accounts.find_map(|account| self.shares().joined(account, key, bytes))
    }

    fn end_share(&self, share: Option<Share>) {
        if let Some(share) = share {
            self.shares().end(share);
        }
    }

    /// Imports external memory of `bytes` by `call`; `handle` reads its handle after a success. `file`: key and length
    /// in bytes of the file behind it, if the file distinguishes it from other memory.
    pub fn import_external(
        &self,
        account: E::Account,
        bytes: u64,
        file: Option<(Key, u64)>,
        call: impl FnOnce() -> CUresult,
        handle: impl FnOnce() -> usize,
    ) -> CUresult {
        // An import of a part keeps the whole allocation.
        let whole = file.map_or(0, |(_, bytes)| self.extents().whole_pages(account, bytes));
        let bytes = rounded(bytes).max(whole);
        let key = file.map_or_else(|| Key::of_size(bytes), |(key, _)| key);
        // It may be charged on any device. Otherwise it is on the current device, or the driver refuses.
        let others = self.env().accounts();
        let others = others.filter(|other| file.is_some() && other.index() != account.index());
        let share = match self.joined(others, key, bytes) {
            Some(share) => Ok(share),
            None => self.shares().imported(self, account, key, bytes),
        };
        let share = match share {
            Ok(share) => share,
            Err(code) => return code,
        };
        let result = call();
        if result.is_success() {
            let context = self.env().current_context();
            self.live().imports.external(handle(), share, context);
        } else {
            self.end_share(Some(share));
        }
        result
    }

    /// Part of external memory is mapped under a pointer, or as a mipmap.
    pub fn external_mapped(&self, handle: usize, mapped: u64) {
        if self.env().is_ours() {
            self.live().imports.external_mapped(handle, mapped);
        }
    }

    /// Releases external memory by `call`.
    pub fn destroy_external(&self, handle: usize, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        self.releasing(self.live().release_external(handle), call)
    }

    /// Creates physical memory of `bytes` by `call`; `handle` reads its handle after a success.
    pub fn create_physical(
        &self,
        account: E::Account,
        bytes: u64,
        call: impl FnMut() -> CUresult,
        handle: impl FnOnce() -> u64,
    ) -> CUresult {
        let bytes = rounded(bytes);
        let result = self.allocating(account, bytes, "physical memory", call);
        if result.is_success() {
            let shares = self.shares();
            self.physical.created(shares, handle(), account.index(), bytes);
        }
        result
    }

    /// Releases a handle of physical memory, or of a multicast object, by `call`.
    pub fn release_physical(&self, handle: u64, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        let released = self.physical.release(handle);
        let result = call();
        if let Some(released) = released {
            self.physical
                .released(self.shares(), released, result.is_success());
        }
        // This ended the multicast object; the memory bound to it is free.
        if result.is_success() {
            self.physical.unbind(self.shares(), handle as usize);
        }
        result
    }

    /// The driver has returned a handle for the memory mapped at an address.
    pub fn physical_retained(&self, handle: u64, address: u64) {
        if self.env().is_ours() {
            self.physical.retained(handle, address);
        }
    }

    /// Maps `bytes` from `offset` on of a handle's block at an address by `call`.
    pub fn map_physical(
        &self,
        handle: u64,
        (address, offset, bytes): (u64, u64, u64),
        call: impl FnOnce() -> CUresult,
    ) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        let end = offset.saturating_add(bytes);
        if let Err(code) = self.physical.pay(self.shares(), self, handle, end) {
            return code;
        }
        let result = call();
        if result.is_success() {
            self.physical.mapped(handle, address, bytes);
        }
        result
    }

    /// Unmaps a range of addresses by `call`.
    pub fn unmap_physical(&self, address: u64, bytes: u64, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        let unmapped = self.physical.unmap(address, bytes);
        let result = call();
        self.physical
            .unmapped(self.shares(), unmapped, result.is_success());
        result
    }

    /// A handle's block stays as long as `thing`: a sparse array, or a multicast object.
    pub fn bind_physical(&self, handle: u64, thing: usize) {
        if self.env().is_ours() {
            self.physical.bind(handle, thing);
        }
    }

    /// So does the block that is mapped at an address.
    pub fn bind_physical_at(&self, address: u64, thing: usize) {
        if self.env().is_ours() {
            self.physical.bind_at(address, thing);
        }
    }

    /// From now on a handle's block is known outside this process, by `key` or by its size.
    pub fn physical_exported(&self, handle: u64, key: Option<Key>) {
        if self.env().is_ours() {
            self.physical.exported(self.shares(), handle, key);
        }
    }

    /// Imports physical memory by `call`. After a success `imported` returns its handle, its device's account, and its
    /// identity, whose size is now in whole pages. If it cannot be charged, `give_up` undoes the call.
    pub fn import_physical(
        &self,
        identity: Option<Identity>,
        call: impl FnOnce() -> CUresult,
        imported: impl FnOnce() -> (u64, Option<E::Account>, Option<Identity>),
        give_up: impl FnOnce(u64) -> CUresult,
    ) -> CUresult {
        let shares = self.shares();
        // Before the call: if only the handle keeps the memory, the import is what takes it from the device.
        let importing = match self.physical.begin_import(shares, self, identity) {
            Ok(importing) => importing,
            Err(code) => return code,
        };
        let result = call();
        if !result.is_success() {
            self.physical.end_import(shares, importing);
            return result;
        }
        let (handle, account, identity) = imported();
        let paid = self
            .physical
            .imported(shares, self, handle, (account, identity), importing);
        if let Err(code) = paid {
            let _given_up = give_up(handle);
            return code;
        }
        result
    }
}
