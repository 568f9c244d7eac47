//! gzip without compression: blocks of bytes as they are. The kit is small, and every tool reads it.

/// Bytes of the longest block.
const BLOCK: usize = 0xffff;

/// The file's bytes.
#[must_use]
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    // No name, no time, no system.
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let mut blocks = bytes.chunks(BLOCK).peekable();
    while let Some(block) = blocks.next() {
        file.push(u8::from(blocks.peek().is_none()));
        let length = block.len() as u16;
        file.extend_from_slice(&length.to_le_bytes());
        file.extend_from_slice(&(!length).to_le_bytes());
        file.extend_from_slice(block);
    }
    file.extend_from_slice(&sum(bytes).to_le_bytes());
    file.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    file
}

/// CRC-32 as RFC 1952 has it.
fn sum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_the_known_one() {
        assert_eq!(sum(b"123456789"), 0xcbf4_3926);
    }
}
