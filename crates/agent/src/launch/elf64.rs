//! Empty libraries of this machine's word size, which have only a name.
//!
//! One kind stands in the place of a library of NVIDIA's: it loads, but the program finds no entry point in it and
//! reports that itself. The other kind is a second name of a library: a program that opens it finds the content of the
//! library that it needs.
//!
//! The shape is the System V ABI's, 64-bit: one segment that is readable and writable and never executable (a run
//! directory may be mounted noexec), and a dynamic section.

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
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;

/// The bytes of an empty library of this SONAME, which has the loader load another as well.
#[must_use]
pub fn library(soname: &str, needed: Option<&str>) -> Vec<u8> {
    let strings = format!("\0{soname}\0{}\0", needed.unwrap_or_default()).into_bytes();
    let dynamic_at = EHDR + PHDR * u64::from(SEGMENTS);
    let dynamic_size = (7 + u64::from(needed.is_some())) * 16;
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

    if needed.is_some() {
        file.longs(&[DT_NEEDED, soname.len() as u64 + 2]);
    }
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

    /// This machine's own loader accepts both kinds before a program, without a message.
    #[test]
    fn a_loader_takes_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let (alone, second) = (folder.path().join("alone"), folder.path().join("second"));
        std::fs::write(&alone, library("libalone.so.1", None)).expect("written");
        std::fs::write(&second, library("libalone.so", Some("libalone.so.1"))).expect("written");
        assert!(library("libnvidia-ml.so", Some("libnvidia-ml.so.1")).len() < 512);
        for (preload, loads) in [
            (format!("{}", alone.display()), true),
            // The needed library is found by its SONAME, because it is loaded already.
            (format!("{}:{}", alone.display(), second.display()), true),
            (format!("{}", second.display()), false),
        ] {
            let seen = Command::new("/bin/true")
                .env("LD_PRELOAD", &preload)
                .output()
                .expect("true runs");
            let quiet = seen.status.success() && seen.stderr.is_empty();
            assert_eq!(quiet, loads, "{preload}: {seen:?}");
        }
    }
}
