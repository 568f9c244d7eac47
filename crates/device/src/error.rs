//! Why a device cannot be used.

use crate::mig::StoreError;
use divvy_ledger::PageError;
use divvy_ledger::attach::AttachError;
use divvy_ledger::attach::wire::Status;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a device's page cannot be used; Display is one sentence.
#[derive(Debug)]
pub enum HardwareError {
    /// The run directory cannot be made or read.
    Directory(PathBuf, io::Error),
    /// The run directory belongs to another user, who could read or replace what is in it.
    Foreign(PathBuf),
    /// The page itself.
    Page(PathBuf, PageError),
    /// The holder of the pages, at this socket, does not give them to this process.
    NotServed(PathBuf, AttachError),
    /// What the device is divided into.
    Mig(StoreError),
    /// The device was divided, or its instance removed, since this process began to use CUDA.
    Gone(String),
}

impl fmt::Display for HardwareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HardwareError::Directory(path, why) => {
                write!(
                    f,
                    "run directory {}: {why}; set DIVVY_RUN_DIR to a writable directory",
                    path.display()
                )
            }
            HardwareError::Foreign(path) => {
                write!(
                    f,
                    "run directory {} belongs to another user; set DIVVY_RUN_DIR",
                    path.display()
                )
            }
            HardwareError::Page(path, why) => write!(f, "hardware page {}: {why}", path.display()),
            HardwareError::NotServed(socket, AttachError::Declined(Status::NotAllowed)) => write!(
                f,
                "the holder of the pages at {} gives this device to those who have a slice on it; `divvy run` makes one",
                socket.display()
            ),
            HardwareError::NotServed(socket, AttachError::Declined(Status::NoPages)) => write!(
                f,
                "the holder at {} has no pages of this device; the log of the host's agent says why",
                socket.display()
            ),
            HardwareError::NotServed(socket, why) => write!(
                f,
                "the holder of the device's pages at {} cannot be asked: {why}; a running agent starts another",
                socket.display()
            ),
            HardwareError::Mig(why) => write!(f, "{why}"),
            HardwareError::Gone(id) => write!(f, "{id} is there no more: MIG was changed since cuInit"),
        }
    }
}

impl std::error::Error for HardwareError {}
