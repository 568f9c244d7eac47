//! What an ELF library promises and needs.

use std::collections::BTreeSet;

use anyhow::{Context, bail};
use object::Endianness;
use object::elf;
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _, Sym as _};

/// The facts of one library.
#[derive(Debug)]
pub struct Facts {
    pub soname: Option<String>,
    /// Libraries it names as needed.
    pub needed: Vec<String>,
    /// Symbol versions it needs of them: `GLIBC_2.17`.
    pub versions: BTreeSet<String>,
    /// Names that it defines for others.
    pub exports: BTreeSet<String>,
    pub relro: bool,
    pub bind_now: bool,
    pub symbolic: bool,
    pub stack_not_executable: bool,
}

impl Facts {
    /// Reads a 64-bit library.
    pub fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        let file: ElfFile64<'_, Endianness> = ElfFile64::parse(bytes)?;
        let endian = file.endian();
        let mut facts = Self {
            soname: None,
            needed: Vec::new(),
            versions: BTreeSet::new(),
            exports: BTreeSet::new(),
            relro: false,
            bind_now: false,
            symbolic: false,
            stack_not_executable: false,
        };
        for header in file.elf_header().program_headers(endian, bytes)? {
            match header.p_type(endian) {
                elf::PT_GNU_RELRO => facts.relro = true,
                elf::PT_GNU_STACK => facts.stack_not_executable = header.p_flags(endian) & elf::PF_X == 0,
                _ => {}
            }
        }
        let sections = file.elf_section_table();
        let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM)?;
        let strings = symbols.strings();
        let text = |offset: u64| -> anyhow::Result<String> {
            let bytes = strings
                .get(u32::try_from(offset)?)
                .map_err(|()| anyhow::anyhow!("A name outside the string table"))?;
            Ok(String::from_utf8(bytes.to_vec())?)
        };
        let (entries, _) = sections.dynamic(endian, bytes)?.context("No dynamic section")?;
        for entry in entries {
            let value = entry.d_val(endian);
            match u32::try_from(entry.d_tag(endian)).unwrap_or(0) {
                elf::DT_SONAME => facts.soname = Some(text(value)?),
                elf::DT_NEEDED => facts.needed.push(text(value)?),
                elf::DT_BIND_NOW => facts.bind_now = true,
                elf::DT_SYMBOLIC => facts.symbolic = true,
                elf::DT_FLAGS => {
                    facts.bind_now |= value & u64::from(elf::DF_BIND_NOW) != 0;
                    facts.symbolic |= value & u64::from(elf::DF_SYMBOLIC) != 0;
                }
                elf::DT_FLAGS_1 => facts.bind_now |= value & u64::from(elf::DF_1_NOW) != 0,
                _ => {}
            }
        }
        for symbol in symbols.iter() {
            if symbol.is_definition(endian) && symbol.st_bind() != elf::STB_LOCAL {
                facts.exports.insert(text(symbol.st_name(endian).into())?);
            }
        }
        if let Some((mut needs, link)) = sections.gnu_verneed(endian, bytes)? {
            let strings = sections.strings(endian, bytes, link)?;
            while let Some((_, mut versions)) = needs.next()? {
                while let Some(version) = versions.next()? {
                    let Ok(name) = version.name(endian, strings) else {
                        bail!("A version without a name");
                    };
                    facts.versions.insert(String::from_utf8_lossy(name).into_owned());
                }
            }
        }
        Ok(facts)
    }

    /// The newest glibc symbol version needed, as (2, 17).
    pub fn newest_glibc(&self) -> Option<(u32, u32)> {
        self.versions
            .iter()
            .filter_map(|version| {
                let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
                Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
            })
            .max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_of_this_machine_is_read() {
        // The test itself is dynamically linked and has everything but a SONAME.
        let bytes =
            std::fs::read(std::env::current_exe().expect("a test has a file")).expect("it is readable");
        let facts = Facts::read(&bytes).expect("it is ELF");
        assert!(facts.needed.iter().any(|needed| needed == "libc.so.6"));
        assert!(facts.newest_glibc() >= Some((2, 2)));
        assert_eq!(facts.soname, None);
        assert!(facts.relro && facts.stack_not_executable);
    }
}
