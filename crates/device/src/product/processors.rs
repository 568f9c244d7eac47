//! This machine's processors as PoCL shows them: how many, and how much memory.

const GIB: u64 = 1 << 30;

/// Bytes that PoCL offers of a machine's memory: all but 2 GiB, and of little memory all but a quarter. Source: what PoCL
/// 3.1 tells on machines of several sizes (CL_DEVICE_GLOBAL_MEM_SIZE).
fn offered_bytes(all: u64) -> u64 {
    if all > 7 * GIB {
        all - 2 * GIB
    } else {
        all - all / 4
    }
}

/// Bytes of memory that the device has; 0 where /proc does not tell.
pub fn memory_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    offered_bytes(total_bytes(&told))
}

/// The line `MemTotal: 24684084 kB`, in bytes.
fn total_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix("kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Processors, as compute units.
pub fn count() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pocl_leaves_some_memory_to_the_system() {
        // A machine of this size was asked.
        let meminfo = "MemTotal:       24684084 kB\nMemFree:         1234 kB\n";
        assert_eq!(offered_bytes(total_bytes(meminfo)), 23_129_018_368);
        assert_eq!(offered_bytes(4 * GIB), 3 * GIB);
        assert_eq!(offered_bytes(total_bytes("MemTotal: many")), 0);
        assert!(memory_bytes() > 0 && count() > 0);
    }
}
