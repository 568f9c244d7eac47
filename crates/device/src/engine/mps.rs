//! NVIDIA's Multi-Process Service on an emulated device: its clients run at the same time, and fail at the same time.
//!
//! The control daemon is a file: `control` in the folder that `CUDA_MPS_PIPE_DIRECTORY` names, where NVIDIA's has its
//! socket. It holds the UUID of the device that is served; an empty one serves all. Processes with the same folder are
//! clients of the same server. NVIDIA's environment variables set a client's limits.
//!
//! A daemon for static partitions says `partitioned` there too. A file `partitions` beside it has a line for each
//! partition: its name and how many chunks of multiprocessors it has. A client names one in `CUDA_MPS_SM_PARTITION`,
//! and must.

use crate::engine::schedule::WHOLE;
use crate::inventory::DeviceFacts;
use crate::product::identity::Uuid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// What this process is to an MPS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Names the server; not 0.
    pub server: u64,
    /// Multiprocessors it may use, of [`WHOLE`].
    pub share: u32,
    /// Whose multiprocessors these are: names a static partition; 0: the multiprocessors of no partition.
    pub partition: u64,
    /// Its server has static partitions, and it names none of them.
    pub astray: bool,
    /// Device memory it may have, in bytes.
    pub memory_bytes: Option<u64>,
}

/// What this process is to a device, by its environment.
pub fn client(facts: &DeviceFacts, ordinal: usize) -> Option<Client> {
    let setting = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let text = |name: &str| setting(name).and_then(|value| value.into_string().ok());
    let server = server(&setting("CUDA_MPS_PIPE_DIRECTORY")?, facts.uuid)?;
    let percentage = text("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").map_or(WHOLE, |text| share(&text));
    let wanted = text("CUDA_MPS_SM_PARTITION").unwrap_or_default();
    let chunks = server.partitions.as_ref().map(|list| chunks_of(list, &wanted));
    Some(Client {
        server: server.name,
        share: match chunks.flatten() {
            Some(chunks) => part(facts, chunks).min(percentage),
            None => percentage,
        },
        partition: chunks.flatten().map_or(0, |_| name(wanted.as_bytes())),
        astray: chunks.is_some_and(|chunks| chunks.is_none()),
        memory_bytes: text("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").and_then(|text| limit(&text, ordinal)),
    })
}

/// A server that is there for a device.
#[derive(Debug, PartialEq, Eq)]
struct Server {
    name: u64,
    /// The list of its static partitions, where it was started for such.
    partitions: Option<String>,
}

fn server(pipes: &OsStr, device: Uuid) -> Option<Server> {
    let pipes = std::fs::canonicalize(pipes).ok()?;
    let control = pipes.join("control");
    // NVIDIA's own is a socket, and serves no emulated device.
    if !control.metadata().is_ok_and(|found| found.is_file()) {
        return None;
    }
    let served = std::fs::read_to_string(control).ok()?;
    let (kinds, served): (Vec<&str>, Vec<&str>) =
        served.split_whitespace().partition(|word| *word == PARTITIONED);
    let serves = served.is_empty() || served.iter().any(|one| Uuid::parse(one) == Some(device));
    let partitions = || std::fs::read_to_string(pipes.join("partitions")).unwrap_or_default();
    serves.then(|| Server {
        name: name(pipes.as_os_str().as_bytes()),
        partitions: (!kinds.is_empty()).then(partitions),
    })
}

/// The content of a daemon's file when the daemon serves static partitions.
const PARTITIONED: &str = "partitioned";

/// How many chunks a partition has. None for a partition that is not in the list.
fn chunks_of(list: &str, name: &str) -> Option<u32> {
    let mut lines = list.lines().filter_map(|line| line.split_once(' '));
    let (_, chunks) = lines.find(|(known, _)| !name.is_empty() && *known == name)?;
    chunks.trim().parse().ok().filter(|chunks| *chunks > 0)
}

/// What so many chunks come to, of [`WHOLE`]: a chunk is 4 multiprocessors, and 8 from Hopper on.
fn part(facts: &DeviceFacts, chunks: u32) -> u32 {
    let chunk = if facts.profile.compute_capability.0 < 9 {
        4
    } else {
        8
    };
    let processors = u64::from(chunks) * chunk;
    let part = processors * u64::from(WHOLE) / u64::from(facts.profile.sm_count.max(1));
    u32::try_from(part).unwrap_or(WHOLE).clamp(1, WHOLE)
}

/// FNV-1a.
fn name(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
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
    use crate::product::profile::PROFILES;

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
    fn a_partition_is_one_of_the_list() {
        let list = "GPU-1/0 4\nGPU-1/1 12\nrubbish\nGPU-1/2 lots\nGPU-1/3 0\n";
        assert_eq!(chunks_of(list, "GPU-1/1"), Some(12));
        for none in ["", "GPU-1/9", "rubbish", "GPU-1/2", "GPU-1/3"] {
            assert_eq!(chunks_of(list, none), None, "{none}");
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
        std::fs::write(&control, format!("{} partitioned\n", device(0))).unwrap();
        std::fs::write(pipes.path().join("partitions"), "one 4\n").unwrap();
        let partitioned = server(pipes.path().as_os_str(), device(0)).unwrap();
        assert_eq!(partitioned.partitions.as_deref(), Some("one 4\n"));
        assert_eq!(server(pipes.path().as_os_str(), device(1)), None);
        std::fs::remove_file(&control).unwrap();
        std::fs::create_dir(&control).unwrap();
        assert_eq!(server(pipes.path().as_os_str(), device(0)), None);
    }
}
