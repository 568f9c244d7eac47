//! Files as a tar archive (ustar), with the folders above them. No time and no user of this machine is in it.

use std::collections::BTreeSet;

/// What an archive holds.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Its path, with no `/` at the begin; at most 99 bytes with the archive's folder.
    pub path: String,
    /// What it is.
    pub kind: Kind<'a>,
}

/// What an entry is.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// A file.
    File {
        /// Its bytes.
        bytes: &'a [u8],
        /// Its mode.
        mode: u32,
    },
    /// A symbolic link to this path.
    Link(&'a str),
}

const BLOCK: usize = 512;

/// The archive's bytes. `prefix` stands before each path.
#[must_use]
pub fn pack(prefix: &str, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut folders = BTreeSet::new();
    for entry in entries {
        let path = format!("{prefix}{}", entry.path);
        let ends = path.match_indices('/').map(|(at, _)| at + 1);
        folders.extend(ends.map(|end| path[..end].to_owned()));
    }
    let mut archive = Vec::new();
    for folder in folders {
        header(&mut archive, &folder, 0o755, 0, b'5', "");
    }
    for entry in entries {
        let path = format!("{prefix}{}", entry.path);
        match entry.kind {
            Kind::Link(target) => header(&mut archive, &path, 0o777, 0, b'2', target),
            Kind::File { bytes, mode } => {
                header(&mut archive, &path, mode, bytes.len(), b'0', "");
                archive.extend_from_slice(bytes);
                archive.resize(archive.len().next_multiple_of(BLOCK), 0);
            }
        }
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn header(archive: &mut Vec<u8>, path: &str, mode: u32, bytes: usize, kind: u8, target: &str) {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, path.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{bytes:011o}").as_bytes());
    put(136, b"00000000000");
    // The sum counts itself as spaces.
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    put(265, b"root");
    put(297, b"root");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&block);
}
