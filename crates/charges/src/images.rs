//! The size of a module's variables: the part of its image that a driver must have on the device from the load on.
//!
//! Code is loaded at its first call, and counts as the device's overhead. So do images inside compressed containers,
//! which a limiter does not unpack.

/// The first bytes of an ELF file.
pub const ELF: &[u8] = b"\x7fELF";
/// The first bytes of a container of images, in little endian.
pub const CONTAINER: u32 = 0xba55_ed50;
/// The largest number of sections in an image; a cubin has some hundreds.
const MOST_SECTIONS: u64 = 1 << 16;

/// The size of an image's variables on a device, as far as it can be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// Their bytes.
    pub bytes: u64,
    /// The most allocations that they can be.
    pub allocations: u64,
}

impl Variables {
    /// Machine code does not tell which of them the driver keeps together.
    const fn of_code(bytes: u64) -> Self {
        let allocations = u64::MAX;
        Self { bytes, allocations }
    }
}

/// The size of an image's variables. The image is an ELF file, a container, or PTX text.
#[must_use]
pub fn variables_in(image: &[u8]) -> Variables {
    if image.starts_with(ELF) {
        Variables::of_code(elf(image))
    } else if image.starts_with(&CONTAINER.to_le_bytes()) {
        container(image)
    } else {
        of_text(image)
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(wide))
}

/// Sections that are allocated and hold no code.
fn elf(image: &[u8]) -> u64 {
    const ALLOCATED: u64 = 2;
    const CODE: u64 = 4;
    let sum = || {
        let first = usize::try_from(number::<8>(image, 0x28)?).ok()?;
        let (size, count) = (number::<2>(image, 0x3a)?, number::<2>(image, 0x3c)?);
        if size != 64 || count > MOST_SECTIONS {
            return None;
        }
        let sizes = (0..count as usize).map_while(|section| {
            let at = first.checked_add(section * 64)?;
            let flags = number::<8>(image, at.checked_add(8)?)?;
            let bytes = number::<8>(image, at.checked_add(32)?)?;
            let taken = flags & ALLOCATED != 0 && flags & CODE == 0 && !of_threads(image, at);
            Some(if taken { bytes } else { 0 })
        });
        Some(sizes.fold(0, u64::saturating_add))
    };
    sum().unwrap_or(0)
}

/// Whether the section described at `at` is private to each block or thread: it only states sizes, and takes nothing.
fn of_threads(image: &[u8], at: usize) -> bool {
    let name = || {
        let first = usize::try_from(number::<8>(image, 0x28)?).ok()?;
        let names = first.checked_add(number::<2>(image, 0x3e)? as usize * 64)?;
        let begin = number::<8>(image, names.checked_add(24)?)?.checked_add(number::<4>(image, at)?)?;
        image.get(usize::try_from(begin).ok()?..)
    };
    name().is_some_and(|name| name.starts_with(b".nv.shared") || name.starts_with(b".nv.local"))
}

/// The largest of a container's images: a driver loads one.
fn container(bytes: &[u8]) -> Variables {
    let mut largest = Variables::default();
    let Some(mut at) = number::<2>(bytes, 6).map(|header| header as usize) else {
        return largest;
    };
    while let (Some(header), Some(payload), Some(compressed)) = (
        number::<4>(bytes, at + 4),
        number::<4>(bytes, at + 8),
        number::<4>(bytes, at + 16),
    ) {
        let (begin, next) = (at + header as usize, at + (header + payload) as usize);
        if compressed == 0
            && let Some(image) = bytes.get(begin..next)
        {
            let found = variables_in(image);
            largest.bytes = largest.bytes.max(found.bytes);
            largest.allocations = largest.allocations.max(found.allocations);
        }
        if next <= at {
            break;
        }
        at = next;
    }
    largest
}

/// Variables that PTX text defines at its outermost level in the global and constant spaces.
fn of_text(text: &[u8]) -> Variables {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut sum = Variables::default();
    let mut statement: Vec<u8> = Vec::new();
    let (mut depth, mut at) = (0_u32, 0);
    while let Some(byte) = text.get(at) {
        match (*byte, text.get(at + 1)) {
            (b'/', Some(b'/')) => {
                at += text[at..]
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .unwrap_or(text.len() - at);
                continue;
            }
            (b'/', Some(b'*')) => {
                // The slash after a star that begins the comment does not end it.
                let inside = &text[at + 2..];
                let end = inside.windows(2).position(|pair| pair == b"*/");
                at += 2 + end.map_or(inside.len(), |end| end + 2);
                continue;
            }
            (b'{' | b'(', _) => depth += 1,
            (b'}' | b')', _) => {
                depth = depth.saturating_sub(1);
                // This ends a function, not an initialiser.
                if depth == 0 && *byte == b'}' && !statement.contains(&b'=') {
                    statement.clear();
                }
            }
            (b';', _) if depth == 0 => {
                if let Some(bytes) = variable(&statement) {
                    sum.bytes = sum.bytes.saturating_add(bytes);
                    sum.allocations += 1;
                }
                statement.clear();
            }
            // Directives on a line of their own.
            (b'\n', _) if depth == 0 && !statement.contains(&b'[') && is_heading(&statement) => {
                statement.clear();
            }
            (other, _) if depth == 0 && statement.len() < 4096 => statement.push(other),
            _ => {}
        }
        at += 1;
    }
    sum
}

fn is_heading(statement: &[u8]) -> bool {
    let line = statement.trim_ascii();
    [&b".version"[..], b".target", b".address_size", b".file", b".loc"]
        .iter()
        .any(|word| line.starts_with(word))
}

/// Bytes of one definition, such as `.visible .global .align 4 .b8 table[4][100] = {…}`.
fn variable(statement: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(statement).ok()?;
    let text = text.split('=').next()?;
    let declared = text.split('[').next()?;
    let words = || declared.split_ascii_whitespace();
    if words().any(|word| word == ".extern") || !words().any(|word| word == ".global" || word == ".const") {
        return None;
    }
    let vector = match words().find(|word| matches!(*word, ".v2" | ".v4" | ".v8")) {
        Some(".v2") => 2,
        Some(".v4") => 4,
        Some(_) => 8,
        None => 1,
    };
    let element = words().find_map(|word| {
        let bits = word.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?;
        bits.parse::<u64>().ok()
    })? / 8;
    let dimensions = text.split('[').skip(1).map(|part| {
        let count = part.split(']').next().unwrap_or("").trim();
        match count.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap_or(1),
            None => count.parse::<u64>().unwrap_or(1),
        }
    });
    Some(dimensions.fold(element * vector, u64::saturating_mul))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(image: &[u8]) -> u64 {
        variables_in(image).bytes
    }

    const TEXT: &[u8] = b".version 7.0\n.target sm_75 // .global .b8 no[100];\n.address_size 64\n\
        .extern .global .b8 elsewhere[1000];\n.visible .global .align 4 .b8 table[4][0x100] = {1, 2, 3};\n\
        .const .v4 .f32 color;\n/* .global .b8 no[9]; */ .global .u64 count;\n\
        .visible .entry k(.param .u64 .ptr .global .align 4 p) { .shared .b8 s[100]; ld.global.u32 %r1, [p]; }\n\
        .global .f64 after[2];\n";

    #[test]
    fn variables_of_text_are_added_up() {
        let (bytes, allocations) = (1024 + 16 + 8 + 16, 4);
        assert_eq!(variables_in(TEXT), Variables { bytes, allocations });
        assert_eq!(bytes_of(b".global .b8 huge[8589934592];"), 8 << 30);
        assert_eq!(bytes_of(b"/*/ .global .b8 no[9]; */ .global .b8 yes[3];"), 3);
        assert_eq!(bytes_of(b".global .b64 huge[18446744073709551615];"), u64::MAX);
        for junk in [
            &b""[..],
            b";;;{",
            b"}}}",
            b".global",
            b"\xff\xfe",
            b".global .b8 x[",
        ] {
            assert!(bytes_of(junk) < 8);
        }
    }

    #[test]
    fn images_are_bounded_by_their_length() {
        let mut cubin = vec![0; 64 + 3 * 64];
        cubin[..4].copy_from_slice(ELF);
        cubin[0x28] = 64;
        cubin[0x3a] = 64;
        cubin[0x3c] = 3;
        for (section, flags, bytes) in [(0, 2_u8, 100_u8), (1, 6, 50), (2, 3, 20)] {
            cubin[64 + section * 64 + 8] = flags;
            cubin[64 + section * 64 + 32] = bytes;
        }
        assert_eq!(bytes_of(&cubin), 120);
        for length in 0..cubin.len() {
            assert!(bytes_of(&cubin[..length]) <= 120);
        }
        let mut fatbin = vec![0; 16 + 64];
        fatbin[..4].copy_from_slice(&CONTAINER.to_le_bytes());
        fatbin[6] = 16;
        fatbin[16 + 4] = 64;
        fatbin[16 + 8..16 + 12].copy_from_slice(&(cubin.len() as u32).to_le_bytes());
        fatbin[8] = (64 + cubin.len()) as u8;
        fatbin[9] = ((64 + cubin.len()) >> 8) as u8;
        fatbin.extend_from_slice(&cubin);
        assert_eq!(bytes_of(&fatbin), 120);
        for length in 0..fatbin.len() {
            assert!(bytes_of(&fatbin[..length]) <= 120);
        }
    }
}
