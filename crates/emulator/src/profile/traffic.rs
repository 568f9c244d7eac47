//! What a warp's access costs the memory of a GPU: sectors of device memory, passes of shared memory.

/// Bytes of a sector.
const SECTOR: u64 = 32;
/// Banks of shared memory, each of 4 bytes.
const BANKS: u64 = 32;

/// The sectors that accesses of `bytes` bytes at these addresses lie in.
pub fn sectors(addresses: &[u64], bytes: u64) -> u64 {
    distinct(
        addresses
            .iter()
            .flat_map(|at| at / SECTOR..=(at + bytes.max(1) - 1) / SECTOR),
    )
}

/// The sectors that would do if the different bytes were neighbours.
pub fn ideal(addresses: &[u64], bytes: u64) -> u64 {
    (distinct(addresses.iter().copied()) * bytes).div_ceil(SECTOR)
}

/// The passes of a warp's access to shared memory: one, or as many as different words are asked of one bank. Lanes with
/// wide elements come in two groups of half a warp, or four of a quarter.
pub fn passes(addresses: &[u64], bytes: u64) -> u64 {
    let group = match bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let of_group = |lanes: &[u64]| {
        let mut words: Vec<u64> = lanes
            .iter()
            .flat_map(|at| at / 4..=(at + bytes.max(1) - 1) / 4)
            .collect();
        words.sort_unstable();
        words.dedup();
        let mut banks = [0u64; BANKS as usize];
        for word in words {
            banks[(word % BANKS) as usize] += 1;
        }
        banks.into_iter().max().unwrap_or(0)
    };
    let groups = addresses.chunks(group).map(of_group);
    // An access of 8 bytes takes two passes at best, which is no conflict.
    groups
        .sum::<u64>()
        .saturating_sub(addresses.len().div_ceil(group) as u64 - 1)
        .max(1)
}

fn distinct(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.dedup();
    values.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(count: u64, stride: u64) -> Vec<u64> {
        (0..count).map(|lane| 4096 + lane * stride).collect()
    }

    #[test]
    fn sectors_follow_the_stride() {
        assert_eq!((sectors(&strided(32, 4), 4), ideal(&strided(32, 4), 4)), (4, 4));
        assert_eq!(
            (sectors(&strided(32, 32), 4), ideal(&strided(32, 32), 4)),
            (32, 4)
        );
        assert_eq!((sectors(&strided(32, 0), 4), ideal(&strided(32, 0), 4)), (1, 1));
        assert_eq!(sectors(&strided(32, 16), 16), 16);
        assert_eq!(sectors(&[30], 4), 2, "over a sector's end");
    }

    #[test]
    fn passes_are_words_of_one_bank() {
        assert_eq!(passes(&strided(32, 4), 4), 1);
        assert_eq!(passes(&strided(32, 0), 4), 1, "a broadcast");
        assert_eq!(passes(&strided(32, 8), 4), 2);
        assert_eq!(passes(&strided(32, 128), 4), 32);
        assert_eq!(passes(&strided(32, 132), 4), 1, "a padded column");
        assert_eq!(passes(&strided(32, 8), 8), 1);
        assert_eq!(passes(&strided(32, 16), 16), 1);
    }
}
