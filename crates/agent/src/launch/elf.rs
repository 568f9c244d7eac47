//! A shared object that holds nothing, for a process of another word size.
//!
//! LD_PRELOAD names `<stage>/$LIB/libcuda.so.1`, and the loader puts in the folder of its own word size. A 32-bit
//! program would complain on stderr if that folder had no library it can load, so it gets this one: a few hundred
//! bytes with no code, no symbols and no SONAME. Its only segment is readable and writable, never executable, so it
//! loads from a file system mounted noexec as well (/run often is).

/// ELF machine number of 32-bit x86 (System V ABI, Intel386 supplement).
const EM_386: u16 = 3;

const EHDR: u32 = 52;
const PHDR: u32 = 32;
const SEGMENTS: u16 = 3;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_STACK: u32 = 0x6474_e551;
const READ_WRITE: u32 = 4 | 2;

const DT_NULL: u32 = 0;
const DT_HASH: u32 = 4;
const DT_STRTAB: u32 = 5;
const DT_SYMTAB: u32 = 6;
const DT_STRSZ: u32 = 10;
const DT_SYMENT: u32 = 11;

/// The bytes of an empty 32-bit x86 shared object.
#[must_use]
pub fn empty_i386() -> Vec<u8> {
    let dynamic_at = EHDR + PHDR * u32::from(SEGMENTS);
    let dynamic_size = 6 * 8;
    let symbols_at = dynamic_at + dynamic_size;
    let hash_at = symbols_at + 16;
    let strings_at = hash_at + 16;
    let end = strings_at + 4;

    let mut file = Bytes32(Vec::with_capacity(end as usize));
    // Identification: 32-bit, little-endian, version 1, System V.
    file.0
        .extend([0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.half(3); // ET_DYN
    file.half(EM_386);
    file.words(&[1, 0, EHDR, 0, 0]); // version, no entry, program headers, no sections, no flags
    for half in [EHDR as u16, PHDR as u16, SEGMENTS, 40, 0, 0] {
        file.half(half);
    }

    file.segment(PT_LOAD, 0, end, READ_WRITE, 0x1000);
    file.segment(PT_DYNAMIC, dynamic_at, dynamic_size, READ_WRITE, 4);
    // Without this header the loader would make the program's stack executable.
    file.segment(PT_GNU_STACK, 0, 0, READ_WRITE, 16);

    for (tag, value) in [
        (DT_HASH, hash_at),
        (DT_SYMTAB, symbols_at),
        (DT_SYMENT, 16),
        (DT_STRTAB, strings_at),
        (DT_STRSZ, 1),
        (DT_NULL, 0),
    ] {
        file.words(&[tag, value]);
    }
    file.words(&[0; 4]); // the null symbol
    file.words(&[1, 1, 0, 0]); // one bucket, one chain, both empty
    file.words(&[0]); // the empty string, padded
    debug_assert_eq!(file.0.len(), end as usize);
    file.0
}

/// A little-endian file being written.
struct Bytes32(Vec<u8>);

impl Bytes32 {
    fn half(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn words(&mut self, values: &[u32]) {
        for value in values {
            self.0.extend(value.to_le_bytes());
        }
    }

    fn segment(&mut self, kind: u32, at: u32, size: u32, flags: u32, align: u32) {
        self.words(&[kind, at, at, at, size, size, flags, align]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn is_a_shared_object_without_code() {
        let file = empty_i386();
        assert_eq!(&file[..5], b"\x7fELF\x01");
        assert!(file.len() < 512);
        let flags: Vec<u32> = (0..usize::from(SEGMENTS))
            .map(|n| EHDR as usize + n * PHDR as usize + 24)
            .map(|at| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes")))
            .collect();
        assert!(
            flags.iter().all(|flags| flags & 1 == 0),
            "no segment may be executable"
        );
    }

    /// Where a 32-bit loader is installed, it must accept the file without a message.
    #[test]
    fn a_32_bit_loader_takes_it() {
        let Some(loader) = ["/lib/ld-linux.so.2", "/lib32/ld-linux.so.2"]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
        else {
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libcuda.so.1");
        std::fs::write(&path, empty_i386()).expect("written");
        let seen = Command::new(loader)
            .arg("--verify")
            .arg(&path)
            .output()
            .expect("the loader runs");
        // 0: a program, 2: a shared object; 1 is a file it cannot load.
        assert!(matches!(seen.status.code(), Some(0 | 2)), "{seen:?}");
        assert!(seen.stderr.is_empty(), "{seen:?}");
    }
}
