//! NVIDIA's Multi-Process Service on an emulated device: its clients run at the same time, and fail at the same time.
//!
//! The control daemon is a file: `control` in the folder that `CUDA_MPS_PIPE_DIRECTORY` names, where NVIDIA's has its
//! socket. It holds the UUID of the device that is served; an empty one serves all. Processes with the same folder are
//! clients of the same server. What a client is limited to, its environment says in NVIDIA's words.

use crate::device::identity::Uuid;
use crate::engine::schedule::WHOLE;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What this process is to an MPS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Names the server; not 0.
    pub server: u64,
    /// Multiprocessors it may use, of [`WHOLE`].
    pub share: u32,
    /// Device memory it may have, in bytes.
    pub memory_bytes: Option<u64>,
}

/// What this process is to a device, by its environment.
pub fn client(device: Uuid, ordinal: usize) -> Option<Client> {
    let setting = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let text = |name: &str| setting(name).and_then(|value| value.into_string().ok());
    Some(Client {
        server: server(&setting("CUDA_MPS_PIPE_DIRECTORY")?, device)?,
        share: text("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").map_or(WHOLE, |text| share(&text)),
        memory_bytes: text("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").and_then(|text| limit(&text, ordinal)),
    })
}

fn server(pipes: &OsStr, device: Uuid) -> Option<u64> {
    let pipes = std::fs::canonicalize(pipes).ok()?;
    let control = pipes.join("control");
    // NVIDIA's own is a socket, and serves no emulated device.
    if !control.metadata().is_ok_and(|found| found.is_file()) {
        return None;
    }
    let served = std::fs::read_to_string(control).ok()?;
    let mut served = served.split_whitespace().peekable();
    let everything = served.peek().is_none();
    (everything || served.any(|one| Uuid::parse(one) == Some(device))).then(|| name(&pipes))
}

/// FNV-1a of a path.
fn name(path: &Path) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

/// A percentage of 0 or more than 100, or none at all, limits nothing, as with NVIDIA's.
fn share(percentage: &str) -> u32 {
    match percentage.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => ((percent * 100.0) as u32).max(1),
        _ => WHOLE,
    }
}

/// `0=2G,1=300M`: of the client's devices, in its own order.
fn limit(text: &str, ordinal: usize) -> Option<u64> {
    text.split(',').find_map(|one| {
        let (device, amount) = one.split_once('=')?;
        if device.trim().parse() != Ok(ordinal) {
            return None;
        }
        let amount = amount.trim();
        let shift = match amount.chars().last()?.to_ascii_uppercase() {
            'K' => 10,
            'M' => 20,
            'G' => 30,
            _ => 0,
        };
        let number = amount.trim_end_matches(|last: char| last.is_ascii_alphabetic());
        number.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::profile::PROFILES;

    #[test]
    fn limits_in_nvidias_words() {
        assert_eq!(limit("0=10G", 0), Some(10 << 30));
        assert_eq!(limit("1=2G, 0=300M", 0), Some(300 << 20));
        assert_eq!(limit("0=4096", 0), Some(4096));
        for none in ["", "0", "1=2G", "0=lots", "0=", "0=99999999999999G"] {
            assert_eq!(limit(none, 0), None, "{none}");
        }
        assert_eq!([share("30"), share("12.5"), share("0.001")], [3000, 1250, 1]);
        for whole in ["100", "0", "-3", "300", "half", ""] {
            assert_eq!(share(whole), WHOLE, "{whole}");
        }
    }

    #[test]
    fn a_folder_with_a_control_file_is_a_server() {
        let pipes = tempfile::tempdir().unwrap();
        let device = |index| Uuid::derive(pipes.path(), &PROFILES[0], index);
        let control = pipes.path().join("control");
        assert_eq!(server(pipes.path().as_os_str(), device(0)), None);
        std::fs::write(&control, format!("{}\n", device(1))).unwrap();
        assert_eq!(server(pipes.path().as_os_str(), device(0)), None);
        let served = server(pipes.path().as_os_str(), device(1));
        assert!(served.is_some());
        std::fs::write(&control, "").unwrap();
        assert_eq!(server(pipes.path().join(".").as_os_str(), device(0)), served);
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join("control"), "").unwrap();
        assert_ne!(server(other.path().as_os_str(), device(0)), served);
        std::fs::remove_file(&control).unwrap();
        std::fs::create_dir(&control).unwrap();
        assert_eq!(server(pipes.path().as_os_str(), device(0)), None);
    }
}
