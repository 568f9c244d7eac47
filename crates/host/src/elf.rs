//! Whether a file is a shared object that exports a function, read from the file alone: nothing of it is run.
//!
//! Layouts are those of the System V ABI, "Object Files", 64-bit and little-endian, as on every machine Divvy runs on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const DYNSYM: u32 = 11;
const SYMBOL_BYTES: usize = 24;
/// No honest table is larger; a damaged file's sizes are not allocated.
const LARGEST: u64 = 256 << 20;

/// Whether the file's dynamic symbols define `name`. None when it has no section headers to tell by.
///
/// # Errors
/// `InvalidData` for what is no 64-bit ELF file, or one that ends too early.
pub fn exports(path: &Path, name: &str) -> io::Result<Option<bool>> {
    let file = File::open(path)?;
    let header = read(&file, 0, 64)?;
    if header[..6] != *b"\x7fELF\x02\x01" {
        return Err(invalid("it is no 64-bit ELF file"));
    }
    let sections_at = u64_at(&header, 0x28);
    let (size, count) = (u64::from(u16_at(&header, 0x3a)), u64::from(u16_at(&header, 0x3c)));
    if sections_at == 0 || size < 64 {
        return Ok(None);
    }
    let sections = read(&file, sections_at, size * count)?;
    let sections: Vec<&[u8]> = sections.chunks_exact(size as usize).collect();
    let content = |section: &[u8]| read(&file, u64_at(section, 0x18), u64_at(section, 0x20));
    let Some(dynsym) = sections.iter().find(|section| u32_at(section, 4) == DYNSYM) else {
        return Ok(None);
    };
    let strings = sections
        .get(u32_at(dynsym, 0x28) as usize)
        .ok_or_else(|| invalid("its symbols have no names"))?;
    let strings = content(strings)?;
    let wanted = [name.as_bytes(), b"\0"].concat();
    let defines = |symbol: &[u8]| {
        // A symbol of section 0 is one that the file wants, not one that it has.
        u16_at(symbol, 6) != 0
            && strings
                .get(u32_at(symbol, 0) as usize..)
                .is_some_and(|rest| rest.starts_with(&wanted))
    };
    Ok(Some(content(dynsym)?.chunks_exact(SYMBOL_BYTES).any(defines)))
}

fn read(file: &File, at: u64, size: u64) -> io::Result<Vec<u8>> {
    if size > LARGEST {
        return Err(invalid("it is damaged"));
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, at)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => invalid("it is no ELF file, or cut short"),
            _ => error,
        })?;
    Ok(bytes)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shared object with nothing but the symbol `cuInit`: of section `section`.
    fn object(section: u16) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x28] = 64 + 48 + 8; // section headers behind two symbols and the names
        file[0x3a] = 64;
        file[0x3c] = 2;
        let mut symbols = vec![0; 48];
        symbols[24] = 1;
        symbols[30..32].copy_from_slice(&section.to_le_bytes());
        file.extend(symbols);
        file.extend(b"\0cuInit\0");
        let mut headers = vec![0; 128];
        headers[4] = 11;
        headers[0x18] = 64;
        headers[0x20] = 48;
        headers[0x28] = 1;
        headers[64 + 0x18] = 64 + 48;
        headers[64 + 0x20] = 8;
        file.extend(headers);
        file
    }

    fn told(bytes: &[u8], name: &str) -> io::Result<Option<bool>> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("divvy-elf-{}-{count}", std::process::id()));
        std::fs::write(&path, bytes).expect("written");
        let told = exports(&path, name);
        std::fs::remove_file(&path).expect("removed");
        told
    }

    #[test]
    fn what_is_defined_is_exported_and_what_is_wanted_is_not() {
        assert_eq!(told(&object(7), "cuInit").expect("read"), Some(true));
        assert_eq!(told(&object(7), "cuIni").expect("read"), Some(false));
        assert_eq!(told(&object(0), "cuInit").expect("read"), Some(false));
    }

    #[test]
    fn no_bytes_of_a_file_are_trusted() {
        assert!(told(b"", "cuInit").is_err());
        assert!(told(b"#!/bin/sh\n", "cuInit").is_err());
        let whole = object(7);
        for end in 0..whole.len() {
            assert!(told(&whole[..end], "cuInit").is_err(), "cut at {end}");
        }
        for at in 6..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] = 0xff;
            let _told = told(&damaged, "cuInit");
        }
    }
}
