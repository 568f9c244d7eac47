//! One page of a device: a file of the user's own, or a memory file that a holder gave this process.

use crate::memory::file::{Identity, MemoryFile};
use crate::product::identity::Uuid;
use crate::shared::lock;
use divvy_ledger::attach::device_pages;
use divvy_ledger::{Backing, PageError, reopen_page};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which of a device's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Which process holds how much of its memory.
    Ledger,
    /// The timeline of its engine.
    Engine,
}

/// One page of a device.
#[derive(Debug, Clone)]
pub enum PageFile {
    /// A file of the user's own.
    Path(PathBuf),
    /// A memory file of sealed size.
    Served(Arc<ServedPage>),
}

/// A page that a holder gave this process.
#[derive(Debug)]
pub struct ServedPage {
    /// The memory file.
    pub file: MemoryFile,
    /// The holder's socket.
    pub socket: PathBuf,
    /// The name by which the holder knows the device.
    pub uuid: Uuid,
    /// Which page it is.
    pub which: Which,
}

impl PageFile {
    /// Opens it: a description of the caller's own, which no other caller uses for locks.
    pub fn open(&self) -> Result<OwnedFd, Errno> {
        match self {
            PageFile::Path(path) => lock::open(path),
            PageFile::Served(page) => page.open(),
        }
    }

    /// The identity of its descriptor's file.
    pub fn backing(&self) -> Backing {
        match self {
            PageFile::Path(_) => Backing::File,
            PageFile::Served(_) => Backing::Sealed,
        }
    }

    /// Its name for messages: the file, or the holder's socket.
    pub fn name(&self) -> &Path {
        match self {
            PageFile::Path(path) => path,
            PageFile::Served(page) => &page.socket,
        }
    }
}

impl ServedPage {
    fn open(&self) -> Result<OwnedFd, Errno> {
        let own = self.file.fd().and_then(|fd| reopen_page(fd).map_err(errno));
        own.or_else(|_| {
            // The program closed our descriptor, or has no /proc. The holder opens it for us, if it still has this very
            // page.
            let pages = device_pages(&self.socket, self.uuid.0).map_err(|_| Errno::BADF)?;
            let page = match self.which {
                Which::Ledger => pages.ledger,
                Which::Engine => pages.engine,
            };
            match Identity::of(&page)? == self.file.identity() {
                true => Ok(page),
                false => Err(Errno::STALE),
            }
        })
    }
}

fn errno(why: PageError) -> Errno {
    match why {
        PageError::System { errno, .. } => errno,
        _ => Errno::INVAL,
    }
}
