//! One change at a time. Between a look at the devices and the last change that follows from it no other process may
//! change them. Two commands at once would undo each other's work, and both would report success.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};
use rustix::fs::{FlockOperation, OFlags, flock};

/// Held while devices are changed; a process that dies lets go of it.
#[derive(Debug)]
pub struct Alone {
    _file: Option<File>,
}

impl Alone {
    /// The lock of this machine's GPUs: whatever run directory a command has, they are the same.
    pub const OF_MACHINE: &str = "/run/divvy-mig.lock";
    /// The file's name in a run directory: the emulated devices there are its own.
    pub const NAME: &str = "mig-apply.lock";
    /// The time that another process's change of some GPUs may take.
    pub const TIMEOUT: Duration = Duration::from_secs(60);

    /// Waits until no other process changes devices. A user who may not open the file may not change devices either,
    /// and is told so by the driver.
    ///
    /// # Errors
    /// [`Code::MigBusy`] where another process does not come to an end in time; [`Code::MigDriver`] where the file
    /// cannot be had.
    pub fn wait(path: &Path, timeout: Duration) -> Result<Self, Fault> {
        let fault = |error: &std::io::Error| {
            let message = format!("cannot lock `{}`", path.display());
            Fault::new(Code::MigDriver, message).because(error)
        };
        let mut open = OpenOptions::new();
        open.write(true).create(true).truncate(false).mode(0o600);
        // Never through a link, and never waiting for a FIFO.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        open.custom_flags(i32::try_from(flags.bits()).unwrap_or(0));
        let file = match open.open(path) {
            Ok(file) => file,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound
                ) =>
            {
                return Ok(Self { _file: None });
            }
            Err(error) => return Err(fault(&error)),
        };
        let begin = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: Some(file) }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(why) => return Err(fault(&why.into())),
            }
            if begin.elapsed() > timeout {
                return Err(
                    Fault::new(Code::MigBusy, "another `divvy gpu mig` is changing instances")
                        .hint("wait for it or end it, then apply again"),
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
