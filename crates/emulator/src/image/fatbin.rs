//! The fatbin container: a header, then files (PTX text or ELF), each perhaps compressed.
//!
//! Layout as measured from nvcc 11.8 to 13.5. The bytes come from a program's image and are not trusted: every
//! read is bounds-checked, and a compressed file may not claim to grow without limit.

use std::borrow::Cow;
use std::fmt;

/// First word of a container.
pub const MAGIC: u32 = 0xba55_ed50;
/// Bytes of the container's own header.
pub const HEADER_BYTES: usize = 16;

/// A file may not claim more than this once uncompressed; the largest PTX of the CUDA libraries is a tenth of it.
const MAX_UNCOMPRESSED: u64 = 256 << 20;
/// Texts of one image, or of one linker, together. This bounds the cost of a load however many files the image has.
pub const MAX_TOGETHER: u64 = 512 << 20;
const FILE_HEADER_MIN: usize = 64;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;

/// Why a container cannot be read; Display is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FatbinError {
    /// The first word is not [`MAGIC`].
    NotAFatbin,
    /// A header or a payload reaches beyond the container.
    Truncated,
    /// A file's header is shorter than any known.
    BadHeader,
    /// The payload does not decompress to what the header says.
    BadCompression(&'static str),
    /// The header claims more bytes than any real image.
    TooLarge(u64),
    /// The needed files of one image claim more bytes together than any real image has.
    TooMuch,
}

impl fmt::Display for FatbinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FatbinError::NotAFatbin => write!(f, "the image is not a fatbin container"),
            FatbinError::Truncated => write!(f, "the fatbin container ends before what its headers promise"),
            FatbinError::BadHeader => write!(f, "a file header in the fatbin container is malformed"),
            FatbinError::BadCompression(method) => {
                write!(f, "a file in the fatbin container is not valid {method}")
            }
            FatbinError::TooLarge(bytes) => write!(f, "a file in the fatbin container claims {bytes} bytes"),
            FatbinError::TooMuch => write!(
                f,
                "the image's files have more than {} MiB of PTX together",
                MAX_TOGETHER >> 20
            ),
        }
    }
}

impl std::error::Error for FatbinError {}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// PTX text.
    Ptx,
    /// Machine code.
    Elf,
    /// Anything else, by its number.
    Other(u16),
}

/// One file of a container.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// What it holds.
    pub kind: Kind,
    /// The `NN` of its `sm_NN` or `compute_NN`.
    pub sm: u32,
    flags: u64,
    payload: &'a [u8],
    uncompressed: u64,
}

/// A file that is kept as it is until its contents are needed: most images have files for devices that are not there.
#[derive(Debug, Default)]
pub struct Packed {
    flags: u64,
    payload: Vec<u8>,
    uncompressed: u64,
}

/// Bytes of a whole container, by its header.
pub fn container_bytes(header: &[u8]) -> Result<usize, FatbinError> {
    if u32_at(header, 0)? != MAGIC {
        return Err(FatbinError::NotAFatbin);
    }
    let header_bytes = usize::from(u16_at(header, 6)?);
    if header_bytes < HEADER_BYTES {
        return Err(FatbinError::BadHeader);
    }
    usize::try_from(u64_at(header, 8)?)
        .ok()
        .and_then(|files| files.checked_add(header_bytes))
        .filter(|&bytes| bytes < isize::MAX as usize)
        .ok_or(FatbinError::Truncated)
}

/// The files of a container; bytes after its end are ignored.
pub fn files(container: &[u8]) -> Result<Vec<File<'_>>, FatbinError> {
    let end = container_bytes(container)?;
    let mut rest = container
        .get(usize::from(u16_at(container, 6)?)..end)
        .ok_or(FatbinError::Truncated)?;
    let mut files = Vec::new();
    while !rest.is_empty() {
        let (file, after) = read_file(rest)?;
        files.push(file);
        rest = after;
    }
    Ok(files)
}

fn read_file(bytes: &[u8]) -> Result<(File<'_>, &[u8]), FatbinError> {
    let header_bytes = u32_at(bytes, 4)? as usize;
    if header_bytes < FILE_HEADER_MIN {
        return Err(FatbinError::BadHeader);
    }
    let padded = usize::try_from(u64_at(bytes, 8)?).map_err(|_| FatbinError::Truncated)?;
    let compressed = u32_at(bytes, 16)? as usize;
    let end = header_bytes.checked_add(padded).ok_or(FatbinError::Truncated)?;
    let padded_payload = bytes.get(header_bytes..end).ok_or(FatbinError::Truncated)?;
    let payload = match compressed {
        0 => padded_payload,
        exact => padded_payload.get(..exact).ok_or(FatbinError::Truncated)?,
    };
    let kind = match u16_at(bytes, 0)? {
        1 => Kind::Ptx,
        2 => Kind::Elf,
        other => Kind::Other(other),
    };
    let file = File {
        kind,
        sm: u32_at(bytes, 28)?,
        flags: u64_at(bytes, 40)?,
        payload,
        uncompressed: u64_at(bytes, 56)?,
    };
    Ok((file, &bytes[end..]))
}

impl Packed {
    /// Bytes that the contents take.
    pub fn cost(&self) -> u64 {
        match is_compressed(self.flags) {
            true => self.uncompressed,
            false => self.payload.len() as u64,
        }
    }

    /// The contents, decompressed. They take [`Packed::cost`] and no more.
    pub fn contents(&self) -> Result<Cow<'_, [u8]>, FatbinError> {
        let Packed {
            flags,
            ref payload,
            uncompressed,
        } = *self;
        File {
            kind: Kind::Ptx,
            sm: 0,
            flags,
            payload,
            uncompressed,
        }
        .contents()
    }
}

fn is_compressed(flags: u64) -> bool {
    flags & (FLAG_LZ4 | FLAG_ZSTD) != 0
}

impl<'a> File<'a> {
    /// A copy of the file as it is.
    pub fn keep(&self) -> Packed {
        Packed {
            flags: self.flags,
            payload: self.payload.to_vec(),
            uncompressed: self.uncompressed,
        }
    }

    /// The payload, decompressed.
    fn contents(&self) -> Result<Cow<'a, [u8]>, FatbinError> {
        if !is_compressed(self.flags) {
            return Ok(Cow::Borrowed(self.payload));
        }
        if self.uncompressed > MAX_UNCOMPRESSED {
            return Err(FatbinError::TooLarge(self.uncompressed));
        }
        let bytes = self.uncompressed as usize;
        if self.flags & FLAG_LZ4 != 0 {
            self.lz4(bytes)
        } else {
            self.zstd(bytes)
        }
        .map(Cow::Owned)
    }

    fn lz4(&self, bytes: usize) -> Result<Vec<u8>, FatbinError> {
        // A block cannot grow by more than 255 times: refuse the claim before allocating space for it.
        if bytes > self.payload.len().saturating_mul(255) {
            return Err(FatbinError::BadCompression("LZ4"));
        }
        lz4_flex::block::decompress(self.payload, bytes).map_err(|_| FatbinError::BadCompression("LZ4"))
    }

    fn zstd(&self, bytes: usize) -> Result<Vec<u8>, FatbinError> {
        use std::io::Read;
        let bad = FatbinError::BadCompression("ZSTD");
        let decoder = ruzstd::decoding::StreamingDecoder::new(self.payload).map_err(|_| bad.clone())?;
        let mut text = Vec::new();
        decoder
            .take(bytes as u64 + 1)
            .read_to_end(&mut text)
            .map_err(|_| bad.clone())?;
        if text.len() == bytes { Ok(text) } else { Err(bad) }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, FatbinError> {
    let field = bytes.get(at..at + 2).ok_or(FatbinError::Truncated)?;
    Ok(u16::from_le_bytes([field[0], field[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, FatbinError> {
    Ok(u32::from(u16_at(bytes, at)?) | u32::from(u16_at(bytes, at + 2)?) << 16)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, FatbinError> {
    Ok(u64::from(u32_at(bytes, at)?) | u64::from(u32_at(bytes, at + 4)?) << 32)
}
