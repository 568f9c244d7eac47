//! The two ways in which a plugin comes to its socket: it connects, or the runtime has started it with one.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use divvy_container::nri::SOCKET_VARIABLE;
use divvy_model::Fault;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::fault::fault;

/// How long a runtime may take to read what we send it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module.
pub enum Way {
    /// The runtime listens here.
    Socket(PathBuf),
    /// The runtime has given us a socket, once.
    Launched(Mutex<Option<UnixStream>>),
}

impl Way {
    /// Whether the runtime has started us.
    pub fn is_launched(&self) -> bool {
        matches!(self, Self::Launched(_))
    }

    /// A connection to the runtime.
    pub fn connect(&self) -> Result<UnixStream, Fault> {
        let socket = match self {
            Self::Socket(path) => UnixStream::connect(path).map_err(|error| {
                fault(format!("there is no container runtime at `{}`", path.display()))
                    .because(&error)
                    .hint("turn NRI on in containerd's or CRI-O's configuration, and run this as root; `--socket` names another place")
            })?,
            Self::Launched(socket) => {
                let mut socket = socket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                socket.take().ok_or_else(|| fault("the runtime has given one socket only"))?
            }
        };
        socket
            .set_write_timeout(Some(WRITE_TIMEOUT))
            .map_err(|error| fault("the runtime's socket cannot be used").because(&error))?;
        Ok(socket)
    }
}

/// The socket that a runtime has started us with, if one has.
///
/// # Errors
/// [`divvy_model::Code::Nri`] where its variable names no socket.
pub fn launched() -> Result<Option<Way>, Fault> {
    let Some(text) = std::env::var_os(SOCKET_VARIABLE) else {
        return Ok(None);
    };
    let shown = text.to_string_lossy();
    let wrong = |error: &dyn std::error::Error| {
        fault(format!(
            "{SOCKET_VARIABLE} is `{shown}`, which is no socket of ours"
        ))
        .because(error)
    };
    let number: i32 = shown.parse().map_err(|error| wrong(&error))?;
    // A copy of our own, closed on exec. The original descriptor is closed then.
    let copy = pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|us| pidfd_getfd(us, number, PidfdGetfdFlags::empty()))
        .map_err(|error| wrong(&error))?;
    let socket = UnixStream::from(copy);
    socket.peer_addr().map_err(|error| wrong(&error))?;
    if number > 2 {
        nix::unistd::close(number).map_err(|error| wrong(&error))?;
    }
    Ok(Some(Way::Launched(Mutex::new(Some(socket)))))
}
