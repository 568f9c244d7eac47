//! Empty libraries, which have a name at most, written in the shape of the System V ABI.
//!
//! One kind stands in the place of a library of NVIDIA's: it loads, but the program finds no entry point in it and
//! reports that itself. Another kind is a second name of a library: a program that opens it finds the content of the
//! library that it needs.
//!
//! The third kind is for processes of another word size. LD_PRELOAD names `<stage>/$LIB/libcuda.so.1`, and the loader puts
//! in the folder of its own word size. A 32-bit program would complain on stderr if that folder had no library it can
//! load, so it gets one without code, symbols and SONAME.
//!
//! The only segment of each is readable and writable and never executable, so it loads from a file system mounted noexec
//! as well (/run often is).

/// The word size and the machine of a library.
struct Shape {
    /// Bytes of an address.
    long: u32,
    /// ELF's machine number.
    machine: u16,
}

/// This machine's own.
const OWN: Shape = Shape {
    long: 8,
    machine: if cfg!(target_arch = "x86_64") { 62 } else { 183 },
};

/// 32-bit x86 (System V ABI, Intel386 supplement).
const I386: Shape = Shape { long: 4, machine: 3 };

const SEGMENTS: u16 = 3;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_STACK: u32 = 0x6474_e551;
const READ_WRITE: u32 = 4 | 2;

const DT_NULL: u32 = 0;
const DT_NEEDED: u32 = 1;
const DT_HASH: u32 = 4;
const DT_STRTAB: u32 = 5;
const DT_SYMTAB: u32 = 6;
const DT_STRSZ: u32 = 10;
const DT_SYMENT: u32 = 11;
const DT_SONAME: u32 = 14;

/// The bytes of an empty library of this SONAME, which has the loader load another as well.
#[must_use]
pub fn library(soname: &str, needed: Option<&str>) -> Vec<u8> {
    let mut names = vec![(DT_SONAME, soname)];
    names.extend(needed.map(|needed| (DT_NEEDED, needed)));
    OWN.write(&names)
}

/// The bytes of an empty 32-bit x86 shared object.
#[must_use]
pub fn empty_i386() -> Vec<u8> {
    I386.write(&[])
}

impl Shape {
    /// Bytes of the file's header.
    fn header(&self) -> u32 {
        40 + 3 * self.long
    }

    /// Bytes of a program header.
    fn program_header(&self) -> u32 {
        8 + 6 * self.long
    }

    /// A library with these entries of its dynamic section whose values are names.
    fn write(&self, names: &[(u32, &str)]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut dynamic = Vec::new();
        for (tag, name) in names {
            dynamic.push((*tag, strings.len() as u32));
            strings.extend(name.bytes().chain([0]));
        }
        let symbol_size = 8 + 2 * self.long;
        let dynamic_at = self.header() + self.program_header() * u32::from(SEGMENTS);
        let dynamic_size = (dynamic.len() as u32 + 6) * 2 * self.long;
        let symbols_at = dynamic_at + dynamic_size;
        let hash_at = symbols_at + symbol_size;
        let strings_at = hash_at + 16;
        let end = strings_at + strings.len() as u32;
        dynamic.extend([
            (DT_HASH, hash_at),
            (DT_SYMTAB, symbols_at),
            (DT_SYMENT, symbol_size),
            (DT_STRTAB, strings_at),
            (DT_STRSZ, strings.len() as u32),
            (DT_NULL, 0),
        ]);

        let mut file = File {
            bytes: Vec::with_capacity(end as usize),
            long: self.long,
        };
        // Identification: word size, little-endian, version 1, System V.
        file.bytes
            .extend([0x7f, b'E', b'L', b'F', (self.long / 4) as u8, 1, 1, 0]);
        file.bytes.extend([0; 8]);
        file.half(3); // ET_DYN
        file.half(self.machine);
        file.word(1);
        file.longs(&[0, self.header(), 0]); // no entry, program headers, no sections
        file.word(0);
        let section_header = 16 + 6 * self.long as u16;
        for half in [
            self.header() as u16,
            self.program_header() as u16,
            SEGMENTS,
            section_header,
            0,
            0,
        ] {
            file.half(half);
        }

        file.segment(PT_LOAD, 0, end, 0x1000);
        file.segment(PT_DYNAMIC, dynamic_at, dynamic_size, self.long);
        // Without this header the loader would make the program's stack executable.
        file.segment(PT_GNU_STACK, 0, 0, 16);

        for (tag, value) in dynamic {
            file.longs(&[tag, value]);
        }
        file.bytes.extend(vec![0; symbol_size as usize]); // the null symbol
        for word in [1, 1, 0, 0] {
            file.word(word); // one bucket, one chain, both empty
        }
        file.bytes.extend(strings);
        debug_assert_eq!(file.bytes.len(), end as usize);
        file.bytes
    }
}

/// A little-endian file being written.
struct File {
    bytes: Vec<u8>,
    /// Bytes of an address.
    long: u32,
}

impl File {
    fn half(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn word(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// Values of an address's size.
    fn longs(&mut self, values: &[u32]) {
        for value in values {
            self.bytes
                .extend(&u64::from(*value).to_le_bytes()[..self.long as usize]);
        }
    }

    /// A program header, whose flags lie elsewhere in each word size.
    fn segment(&mut self, kind: u32, at: u32, size: u32, align: u32) {
        self.word(kind);
        if self.long == 8 {
            self.word(READ_WRITE);
        }
        self.longs(&[at, at, at, size, size]);
        if self.long == 4 {
            self.word(READ_WRITE);
        }
        self.longs(&[align]);
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
        let flags: Vec<u32> = (0..u32::from(SEGMENTS))
            .map(|n| (I386.header() + n * I386.program_header() + 24) as usize)
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
