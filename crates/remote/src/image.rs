//! How long a module's image is: the interface gives an address and no length.
//!
//! The client measures to know what to send, and the server measures what came, so that the driver below reads no
//! further than it. Forms: a wrapper with an address, a container of files, an ELF, or a text that ends with a zero.

use divvy_abi::*;

/// A wrapper: mark, version, address of a container, and another address.
pub const WRAPPER: u32 = 0x4662_43b1;
const CONTAINER: u32 = 0xba55_ed50;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Gives `count` bytes of an image from `at` on, where they are there.
pub type Look<'a, 'b> = &'a mut dyn FnMut(usize, usize) -> Option<&'b [u8]>;

fn number(look: Look<'_, '_>, at: usize, bytes: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..bytes].copy_from_slice(look(at, bytes)?);
    Some(u64::from_le_bytes(word))
}

/// The length of an image that is no wrapper; `text` measures a text, its zero included. Nothing where the image ends before
/// its own end.
pub fn measure<'b>(
    look: &mut dyn FnMut(usize, usize) -> Option<&'b [u8]>,
    text: impl FnOnce() -> Option<usize>,
) -> Option<usize> {
    if begins(look, CONTAINER) {
        let header = number(look, 6, 2)?;
        let files = number(look, 8, 8)?;
        // The files are walked by their own sizes: each has to lie in the container.
        let length = header.checked_add(files)?;
        walked(look, header, length)?;
        return usize::try_from(length).ok();
    }
    if begins(look, ELF) {
        return elf(look);
    }
    text()
}

/// Whether an image begins with a mark. A text may be shorter than one, so it is read byte by byte.
pub fn begins(look: Look<'_, '_>, mark: u32) -> bool {
    let mark = mark.to_le_bytes();
    (0..mark.len()).all(|at| look(at, 1) == Some(&mark[at..=at]))
}

/// The length of a text among these bytes.
pub fn text(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == 0).map(|end| end + 1)
}

/// Whether the files of a container end with it.
fn walked(look: Look<'_, '_>, header: u64, length: u64) -> Option<()> {
    let mut at = header;
    if header < 16 {
        return None;
    }
    while at < length {
        let place = usize::try_from(at).ok()?;
        let head = number(look, place + 4, 4)?;
        let payload = number(look, place + 8, 8)?;
        if head < 64 {
            return None;
        }
        at = at.checked_add(head)?.checked_add(payload)?;
    }
    (at == length).then_some(())
}

/// Bytes that an image takes when its files are decompressed, by what their headers say: the sum of all, and no less than
/// the image itself.
pub fn decompressed(bytes: &[u8]) -> u64 {
    const LZ4: u64 = 0x2000;
    const ZSTD: u64 = 0x8000;
    let own = bytes.len() as u64;
    let look = &mut |at: usize, count: usize| bytes.get(at..at.checked_add(count)?);
    if !begins(look, CONTAINER) {
        return own;
    }
    let mut sum = 0_u64;
    let mut at = number(look, 6, 2).unwrap_or(0);
    while let Ok(place) = usize::try_from(at)
        && place < bytes.len()
        && let (Some(head), Some(payload)) = (number(look, place + 4, 4), number(look, place + 8, 8))
        && head >= 64
    {
        let flags = number(look, place + 40, 8).unwrap_or(0);
        let whole = number(look, place + 56, 8).unwrap_or(0);
        let is_packed = flags & (LZ4 | ZSTD) != 0;
        sum = sum.saturating_add(if is_packed { whole } else { payload });
        at = at.saturating_add(head).saturating_add(payload);
    }
    sum.max(own)
}

/// The end of the last table or section of an ELF of 64 bits.
fn elf(look: Look<'_, '_>) -> Option<usize> {
    let (segments, sections) = (number(look, 0x20, 8)?, number(look, 0x28, 8)?);
    let (segment, segment_count) = (number(look, 0x36, 2)?, number(look, 0x38, 2)?);
    let (section, section_count) = (number(look, 0x3a, 2)?, number(look, 0x3c, 2)?);
    if (segment_count != 0 && segment < 56) || (section_count != 0 && section < 64) {
        return None;
    }
    let mut end = 64.max(segments.checked_add(segment * segment_count)?);
    end = end.max(sections.checked_add(section * section_count)?);
    for index in 0..section_count {
        let at = usize::try_from(sections.checked_add(index * section)?).ok()?;
        // A section of zeros (SHT_NOBITS) has no bytes in the file.
        if number(look, at.checked_add(4)?, 4)? != 8 {
            let (offset, size) = (
                number(look, at.checked_add(0x18)?, 8)?,
                number(look, at.checked_add(0x20)?, 8)?,
            );
            end = end.max(offset.checked_add(size)?);
        }
    }
    for index in 0..segment_count {
        let at = usize::try_from(segments.checked_add(index * segment)?).ok()?;
        let (offset, size) = (
            number(look, at.checked_add(8)?, 8)?,
            number(look, at.checked_add(0x20)?, 8)?,
        );
        end = end.max(offset.checked_add(size)?);
    }
    usize::try_from(end).ok()
}

/// Whether an option of a load is a number, and no address of the program.
pub fn is_number(option: CUjit_option) -> bool {
    matches!(
        option,
        CU_JIT_MAX_REGISTERS
            | CU_JIT_THREADS_PER_BLOCK
            | CU_JIT_OPTIMIZATION_LEVEL
            | CU_JIT_TARGET_FROM_CUCONTEXT
            | CU_JIT_TARGET
            | CU_JIT_FALLBACK_STRATEGY
            | CU_JIT_GENERATE_DEBUG_INFO
            | CU_JIT_LOG_VERBOSE
            | CU_JIT_GENERATE_LINE_INFO
            | CU_JIT_CACHE_MODE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(bytes: &[u8]) -> Option<usize> {
        measure(&mut |at, count| bytes.get(at..at.checked_add(count)?), || {
            text(bytes)
        })
    }

    #[test]
    fn a_text_ends_with_its_zero() {
        assert_eq!(length(b"abc\0def"), Some(4));
        assert_eq!(length(b"P\0"), Some(2));
        assert_eq!(length(b"\0"), Some(1));
        assert_eq!(length(b"abc"), None);
        assert_eq!(length(b""), None);
        let mut long = vec![b'x'; 100_000];
        long.push(0);
        assert_eq!(length(&long), Some(100_001));
    }

    fn container(files: &[u64]) -> Vec<u8> {
        let mut bytes = CONTAINER.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[1, 0, 16, 0]);
        let size: u64 = files.iter().map(|payload| 64 + payload).sum();
        bytes.extend_from_slice(&size.to_le_bytes());
        for payload in files {
            let mut head = [0; 64];
            head[4] = 64;
            head[8..16].copy_from_slice(&payload.to_le_bytes());
            bytes.extend_from_slice(&head);
            bytes.resize(bytes.len() + *payload as usize, 7);
        }
        bytes
    }

    #[test]
    fn a_container_ends_with_its_files() {
        let bytes = container(&[8, 40]);
        assert_eq!(length(&bytes), Some(bytes.len()));
        assert_eq!(length(&container(&[])), Some(16));
        let mut longer = bytes.clone();
        longer[16 + 8] = 200;
        assert_eq!(length(&longer), None, "a file reaches past the end");
        let mut endless = bytes.clone();
        endless[16 + 4] = 0;
        assert_eq!(length(&endless), None, "no head");
        assert_eq!(length(&bytes[..12]), None);
    }

    #[test]
    fn a_packed_file_counts_as_what_it_says_that_it_becomes() {
        let mut bytes = container(&[8, 40]);
        assert_eq!(decompressed(&bytes), bytes.len() as u64);
        bytes[16 + 40..16 + 48].copy_from_slice(&0x2000_u64.to_le_bytes());
        bytes[16 + 56..16 + 64].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        assert_eq!(decompressed(&bytes), (1 << 40) + 40);
        bytes[16 + 56..16 + 64].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(decompressed(&bytes), u64::MAX);
        assert_eq!(decompressed(b"text\0"), 5);
    }

    #[test]
    fn an_elf_ends_with_its_last_section() {
        let mut bytes = vec![0; 64 + 2 * 64];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[0x28] = 64;
        bytes[0x3a] = 64;
        bytes[0x3c] = 2;
        assert_eq!(length(&bytes), Some(192));
        bytes[64 + 0x18..64 + 0x20].copy_from_slice(&1000_u64.to_le_bytes());
        bytes[64 + 0x20..64 + 0x28].copy_from_slice(&24_u64.to_le_bytes());
        assert_eq!(length(&bytes), Some(1024));
        bytes[64 + 4] = 8;
        assert_eq!(length(&bytes), Some(192));
        bytes[0x28..0x30].fill(0xff);
        assert_eq!(length(&bytes), None);
    }
}
