//! An empty library that stands where one of NVIDIA's would be found: it loads, and nothing is in it, so that whoever
//! asked finds no entry point and says so in its own words.
//!
//! The shape is the System V ABI's, 64-bit: one segment that is readable and writable and never executable (a run
//! directory may be mounted noexec), a dynamic section, a SONAME by which the limiter knows it.

use divvy_ledger::STAND_IN_SONAME;

/// ELF machine numbers of this machine.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };

const EHDR: u64 = 64;
const PHDR: u64 = 56;
const SEGMENTS: u16 = 3;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_STACK: u32 = 0x6474_e551;
const READ_WRITE: u32 = 4 | 2;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;

/// The bytes of the empty library.
#[must_use]
pub fn stand_in() -> Vec<u8> {
    let strings = [b"\0", STAND_IN_SONAME.as_bytes(), b"\0"].concat();
    let dynamic_at = EHDR + PHDR * u64::from(SEGMENTS);
    let dynamic_size = 7 * 16;
    let symbols_at = dynamic_at + dynamic_size;
    let hash_at = symbols_at + 24;
    let strings_at = hash_at + 16;
    let end = strings_at + strings.len() as u64;

    let mut file = Bytes64(Vec::with_capacity(end as usize));
    // Identification: 64-bit, little-endian, version 1, System V.
    file.0
        .extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.half(3); // ET_DYN
    file.half(MACHINE);
    file.word(1);
    file.longs(&[0, EHDR, 0]); // no entry, program headers, no sections
    file.word(0);
    for half in [EHDR as u16, PHDR as u16, SEGMENTS, 64, 0, 0] {
        file.half(half);
    }

    file.segment(PT_LOAD, 0, end, 0x1000);
    file.segment(PT_DYNAMIC, dynamic_at, dynamic_size, 8);
    // Without this header the loader would make the program's stack executable.
    file.segment(PT_GNU_STACK, 0, 0, 16);

    for (tag, value) in [
        (DT_SONAME, 1),
        (DT_HASH, hash_at),
        (DT_SYMTAB, symbols_at),
        (DT_SYMENT, 24),
        (DT_STRTAB, strings_at),
        (DT_STRSZ, strings.len() as u64),
        (DT_NULL, 0),
    ] {
        file.longs(&[tag, value]);
    }
    file.longs(&[0; 3]); // the null symbol
    for word in [1, 1, 0, 0] {
        file.word(word); // one bucket, one chain, both empty
    }
    file.0.extend(strings);
    debug_assert_eq!(file.0.len() as u64, end);
    file.0
}

/// A little-endian file being written.
struct Bytes64(Vec<u8>);

impl Bytes64 {
    fn half(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn word(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn longs(&mut self, values: &[u64]) {
        for value in values {
            self.0.extend(value.to_le_bytes());
        }
    }

    fn segment(&mut self, kind: u32, at: u64, size: u64, align: u64) {
        self.word(kind);
        self.word(READ_WRITE);
        self.longs(&[at, at, at, size, size, align]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// This machine's own loader takes it, in front of a program, without a word.
    #[test]
    fn a_loader_takes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libnvcuvid.so.1");
        let file = stand_in();
        assert!(file.len() < 512);
        std::fs::write(&path, file).expect("written");
        let seen = Command::new("/bin/true")
            .env("LD_PRELOAD", &path)
            .output()
            .expect("true runs");
        assert!(seen.status.success() && seen.stderr.is_empty(), "{seen:?}");
    }
}
