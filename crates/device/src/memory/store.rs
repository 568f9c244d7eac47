//! Where a device's pages in this process get their bytes: extents of one memory file, handed out in device pages.
//!
//! One file, not one for each allocation, because each costs a descriptor. It is far larger than any device, so that
//! extents never run out before the device's memory does, and takes no memory where nothing was written.

use super::file::MemoryFile;
use super::free_list::FreeList;
use super::mapping::Mapping;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of the file: address space of the file system only.
const BYTES: u64 = 1 << 46;

/// The memory file behind a device's pages.
#[derive(Debug)]
pub struct Store {
    file: MemoryFile,
    free: Mutex<FreeList>,
}

impl Store {
    /// A store with all of its extents free.
    ///
    /// # Errors
    /// The system's reason.
    pub fn create() -> Result<Arc<Store>, Errno> {
        Ok(Arc::new(Store {
            file: MemoryFile::create(BYTES)?,
            free: Mutex::new(FreeList::new(BYTES)),
        }))
    }

    /// Whether the program has left the descriptor open.
    pub fn is_usable(&self) -> bool {
        self.file.fd().is_ok()
    }

    /// An extent of zeros; `bytes` are whole device pages.
    pub fn take(self: &Arc<Store>, bytes: u64) -> Option<FileExtent> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = free.take(bytes)?;
        Some(FileExtent {
            store: Arc::clone(self),
            offset,
            bytes,
        })
    }
}

/// A part of a store. Its bytes go back to the system on drop, even if they are still mapped.
#[derive(Debug)]
pub struct FileExtent {
    store: Arc<Store>,
    offset: u64,
    bytes: u64,
}

impl FileExtent {
    /// The file it is part of.
    pub fn file(&self) -> &MemoryFile {
        &self.store.file
    }

    /// Where in the file it starts.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Maps all of it at an address that is a multiple of `align`.
    ///
    /// # Errors
    /// The system's reason.
    pub fn map(&self, align: usize) -> Result<Mapping, Errno> {
        let length = usize::try_from(self.bytes).map_err(|_| Errno::NOMEM)?;
        Mapping::of_file(self.file().fd()?, self.offset, length, align)
    }
}

impl Drop for FileExtent {
    fn drop(&mut self) {
        // An extent that could not be emptied is not used again: the next owner is promised zeros.
        if self.store.file.discard(self.offset, self.bytes).is_ok() {
            let mut free = self.store.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.give(self.offset, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_apart_and_zero_again_when_reused() {
        const PAGE: u64 = 2 << 20;
        let store = Store::create().unwrap();
        let first = store.take(PAGE).unwrap();
        let second = store.take(PAGE).unwrap();
        assert_ne!(first.offset(), second.offset());
        let mapping = first.map(PAGE as usize).unwrap();
        assert_eq!(mapping.address() % PAGE, 0);
        // SAFETY: the mapping holds the byte and this test alone uses it.
        unsafe { (mapping.address() as *mut u8).write(7) };
        let first_byte = |extent: &FileExtent| {
            let mapping = extent.map(4096).unwrap();
            // SAFETY: as above.
            unsafe { (mapping.address() as *const u8).read() }
        };
        assert_eq!(first_byte(&first), 7);
        let at = first.offset();
        drop((mapping, first));
        let again = store.take(PAGE).unwrap();
        assert_eq!(again.offset(), at);
        assert_eq!(first_byte(&again), 0);
    }
}
