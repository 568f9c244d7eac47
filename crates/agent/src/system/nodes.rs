//! Device nodes: whether a user can open them, by their modes.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use divvy_model::{DeviceKind, DeviceRecord};

use crate::files::kernel;
use crate::system::peer::Peer;

/// What reads and writes, for others and for a group.
const OTHERS: u32 = 0o006;
const GROUP: u32 = 0o060;

/// Whether the caller can open NVIDIA's nodes. Emulated devices have none. Root can open everything, so its answer would
/// say nothing: the level is no boundary to the host's root.
#[expect(clippy::disallowed_methods, reason = "only root makes names in /dev")]
pub(crate) fn has_open_nodes(peer: Peer, devices: &[DeviceRecord]) -> bool {
    let emulated = devices.iter().all(|device| device.kind == DeviceKind::Emulated);
    if emulated || peer.uid == 0 {
        return false;
    }
    let groups = groups(peer.pid);
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let nodes = entries.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(b"nvidia")
    });
    // Folders hold what grants rights to instances (`nvidia-caps`), and no device. Links are judged by what they lead to.
    let mut files = nodes.filter_map(|node| fs::metadata(node.path()).ok());
    files.any(|node| {
        node.file_type().is_char_device() && is_open(node.mode(), node.uid(), node.gid(), peer.uid, &groups)
    })
}

fn is_open(mode: u32, owner: u32, group: u32, uid: u32, groups: &[u32]) -> bool {
    owner == uid || mode & OTHERS != 0 || (mode & GROUP != 0 && groups.contains(&group))
}

/// The groups that the kernel tells of a process: its own and the supplementary ones.
fn groups(pid: u32) -> Vec<u32> {
    let status = kernel::text(pid, "status").unwrap_or_default();
    let lines = status
        .lines()
        .filter_map(|line| line.strip_prefix("Gid:").or_else(|| line.strip_prefix("Groups:")));
    lines
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_open_by_its_mode_to_its_owner_and_to_its_group() {
        assert!(is_open(0o666, 0, 0, 1000, &[1000]), "as NVIDIA makes them");
        assert!(is_open(0o660, 0, 44, 1000, &[1000, 44]));
        assert!(!is_open(0o660, 0, 44, 1000, &[1000]));
        assert!(is_open(0o600, 1000, 0, 1000, &[]));
        assert!(!is_open(0o600, 0, 0, 1000, &[0]));
    }

    #[test]
    fn the_kernel_tells_our_own_group() {
        let own = rustix::process::getgid().as_raw();
        assert!(groups(std::process::id()).contains(&own));
    }
}
