//! Xid errors in the kernel's log: what NVIDIA's driver reports of a GPU that misbehaves.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use super::Sysroot;

/// No kernel's ring is larger.
const MOST: usize = 4 << 20;

/// `(PCI address without function, code, words)` of each Xid in the kernel's log, where it may be read.
pub fn errors(root: &Sysroot) -> Vec<(String, u32, String)> {
    let text = match root.is_own() {
        true => ring(),
        false => root.bytes("dev/kmsg", MOST).unwrap_or_default(),
    };
    String::from_utf8_lossy(&text).lines().filter_map(parse).collect()
}

/// The running kernel's log.
fn ring() -> Vec<u8> {
    let mut text = Vec::new();
    let opened = std::fs::OpenOptions::new()
        .read(true)
        // The log never ends: without this the last read would wait for the next line.
        .custom_flags(i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0))
        .open("/dev/kmsg");
    let Ok(mut log) = opened else { return text };
    let mut record = [0; 8192];
    // One record is one read; a log that moved on beneath us is an error to skip.
    for _ in 0..65_536 {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) if text.len() < MOST => text.extend_from_slice(&record[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Ok(_) | Err(_) => break,
        }
    }
    text
}

/// `NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.`
fn parse(line: &str) -> Option<(String, u32, String)> {
    let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
    let (address, rest) = rest.split_once("): ")?;
    let (code, words) = rest.split_once(',').unwrap_or((rest, ""));
    Some((
        address.to_ascii_lowercase(),
        code.trim().parse().ok()?,
        words.trim().to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_log() {
        let line = "3,1,2,-;NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', GPU has fallen off the bus.";
        let (address, code, words) = parse(line).expect("an Xid");
        assert_eq!((address.as_str(), code), ("0000:3b:00", 79));
        assert!(words.ends_with("off the bus."));
        assert_eq!(parse("NVRM: loading NVIDIA UNIX x86_64 Kernel Module"), None);
        assert_eq!(parse("NVRM: Xid (PCI:0000:3B:00): x"), None);
    }
}
