//! What a program carries to another process to have memory or an event there: 64 bytes.
//!
//! The bytes pass through the program's hands, so they are checked like any other input; nothing in them is an
//! address or a descriptor.

use super::ownership::Id;

/// Size of CUipcMemHandle, CUipcEventHandle and CUmemPoolPtrExportData.
pub const BYTES: usize = 64;

/// What a key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Memory of cuMemAlloc.
    Memory = 1,
    /// Memory of a pool.
    Pooled = 2,
    /// An event.
    Event = 3,
}

/// A key, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// What it opens.
    pub lock: Lock,
    /// UUID of the device, or name of the pool.
    pub scope: [u8; 16],
    /// Name of the ownership record of the pages the memory lies in, or of the event.
    pub id: Id,
    /// The allocation, among all of the process that made it.
    pub allocation: u64,
    /// Where in the pages it starts, in bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub bytes: u64,
}

const MAGIC: [u8; 4] = *b"dVK1";

impl Key {
    /// As the program carries it.
    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&(self.lock as u32).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.scope);
        bytes[24..40].copy_from_slice(&self.id.0);
        bytes[40..48].copy_from_slice(&self.allocation.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.offset.to_le_bytes());
        let check = check(&bytes[..60]);
        bytes[60..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads what a program brings; None if it was never a key to such a lock.
    pub fn read(bytes: &[u8; BYTES], lock: Lock) -> Option<Key> {
        let (text, sum) = bytes.split_at(60);
        let word = |at: usize| text[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let genuine = text[..4] == MAGIC
            && text[4..8] == (lock as u32).to_le_bytes()
            && sum == check(text).to_le_bytes();
        Some(Key {
            lock: genuine.then_some(lock)?,
            scope: text[8..24].try_into().ok()?,
            id: Id(text[24..40].try_into().ok()?),
            allocation: word(40)?,
            bytes: word(48)?,
            offset: u32::from_le_bytes(text[56..60].try_into().ok()?),
        })
    }
}

/// FNV-1a: finds a key that was cut or mixed up, not one that was forged.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, &byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_nothing_else_does() {
        let key = Key {
            lock: Lock::Memory,
            scope: [1; 16],
            id: Id([2; 16]),
            allocation: 3,
            offset: 4,
            bytes: 5,
        };
        let bytes = key.to_bytes();
        assert_eq!(Key::read(&bytes, Lock::Memory), Some(key));
        assert_eq!(Key::read(&bytes, Lock::Event), None);
        for at in 0..BYTES {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Key::read(&other, Lock::Memory), None, "byte {at}");
        }
        assert_eq!(Key::read(&[0; BYTES], Lock::Memory), None);
        assert_eq!(Key::read(&[0xff; BYTES], Lock::Memory), None);
    }
}
