//! Images a program hands over as code, down to the PTX text inside.

pub mod fatbin;
mod readable;
pub mod source;

use crate::{check, profile};
use divvy_abi::*;
use divvy_ptx::{Module, ParseError};
use fatbin::{FatbinError, Kind, MAX_TOGETHER, Packed};
use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// An image: the PTX texts it offers, decompressed and parsed when first needed.
pub struct Image {
    candidates: Vec<Candidate>,
    has_machine_code: bool,
    /// Bytes of the texts that were needed.
    spent: AtomicU64,
}

struct Candidate {
    /// The `NN` of the `sm_NN` it needs.
    sm: u32,
    packed: Packed,
    text: OnceLock<Result<Vec<u8>, FatbinError>>,
    module: OnceLock<Result<Arc<Module>, ParseError>>,
}

/// Why an image cannot be used; Display is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageError {
    /// No image at all.
    Null,
    /// The container is malformed.
    Fatbin(FatbinError),
    /// There is nothing this device can run.
    NoPtx {
        /// It has machine code, which only a GPU runs.
        machine_code: bool,
    },
    /// Every PTX text needs a newer device.
    TooNew {
        /// The least it needs, as the `NN` of `sm_NN`.
        needs: u32,
        /// What the device is.
        has: u32,
    },
    /// The text is not PTX.
    Parse(ParseError),
}

impl ImageError {
    /// What CUDA calls it.
    pub fn code(&self) -> CUresult {
        match self {
            ImageError::Null => CUDA_ERROR_INVALID_VALUE,
            ImageError::Fatbin(_) => CUDA_ERROR_INVALID_IMAGE,
            ImageError::NoPtx { .. } | ImageError::TooNew { .. } => CUDA_ERROR_NO_BINARY_FOR_GPU,
            ImageError::Parse(_) => CUDA_ERROR_INVALID_PTX,
        }
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::Null => write!(f, "the image is a null pointer"),
            ImageError::Fatbin(why) => why.fmt(f),
            ImageError::NoPtx { machine_code: true } => write!(
                f,
                "the image holds machine code only, which an emulated device cannot run: build it with PTX \
                 (nvcc -gencode arch=compute_75,code=compute_75)"
            ),
            ImageError::NoPtx { machine_code: false } => write!(f, "the image holds no code"),
            ImageError::TooNew { needs, has } => {
                write!(f, "the image's PTX needs sm_{needs} and the device is sm_{has}")
            }
            ImageError::Parse(why) => why.fmt(f),
        }
    }
}

impl From<FatbinError> for ImageError {
    fn from(error: FatbinError) -> ImageError {
        ImageError::Fatbin(error)
    }
}

impl Image {
    /// An image of PTX text.
    pub fn from_text(text: &[u8]) -> Image {
        let candidate = Candidate {
            sm: target(text).unwrap_or(0),
            packed: Packed::default(),
            text: OnceLock::from(Ok(text.to_vec())),
            module: OnceLock::new(),
        };
        Image {
            candidates: vec![candidate],
            has_machine_code: false,
            spent: AtomicU64::new(text.len() as u64),
        }
    }

    /// An image of machine code.
    pub fn from_elf() -> Image {
        Image {
            candidates: Vec::new(),
            has_machine_code: true,
            spent: AtomicU64::new(0),
        }
    }

    /// An image in a fatbin container.
    pub fn from_fatbin(container: &[u8]) -> Result<Image, ImageError> {
        let mut image = Image {
            candidates: Vec::new(),
            has_machine_code: false,
            spent: AtomicU64::new(0),
        };
        for file in fatbin::files(container)? {
            match file.kind {
                Kind::Ptx => image.candidates.push(Candidate {
                    sm: file.sm,
                    packed: file.keep(),
                    text: OnceLock::new(),
                    module: OnceLock::new(),
                }),
                Kind::Elf => image.has_machine_code = true,
                Kind::Other(_) => {}
            }
        }
        Ok(image)
    }

    /// Takes over another image's texts.
    pub fn extend(&mut self, other: Image) {
        self.spent.fetch_add(other.spent(), Relaxed);
        self.has_machine_code |= other.has_machine_code;
        self.candidates.extend(other.candidates);
    }

    /// Bytes of text that the image has cost so far.
    pub fn spent(&self) -> u64 {
        self.spent.load(Relaxed)
    }

    /// The module for a device of compute capability `sm`: the newest PTX the device can run.
    pub fn module(&self, sm: u32) -> Result<Arc<Module>, ImageError> {
        let best = self.best(sm)?;
        let text = self.unpack(best)?;
        best.module
            .get_or_init(|| {
                let parsed = if check::on().is_some() {
                    Module::parse_watched(text)
                } else if profile::on().is_some() {
                    Module::parse_counted(text)
                } else {
                    Module::parse(text)
                };
                parsed.map(Arc::new)
            })
            .clone()
            .map_err(ImageError::Parse)
    }

    /// The PTX text for a device of compute capability `sm`.
    pub fn text(&self, sm: u32) -> Result<&[u8], ImageError> {
        self.unpack(self.best(sm)?)
    }

    /// Its text, if the image's limit on text bytes still allows it.
    fn unpack<'a>(&self, candidate: &'a Candidate) -> Result<&'a [u8], ImageError> {
        let text = candidate.text.get_or_init(|| {
            let cost = candidate.packed.cost();
            let within = |spent: u64| spent.checked_add(cost).filter(|&sum| sum <= MAX_TOGETHER);
            self.spent
                .fetch_update(Relaxed, Relaxed, within)
                .map_err(|_| FatbinError::TooMuch)?;
            candidate.packed.contents().map(Cow::into_owned)
        });
        text.as_deref().map_err(|why| why.clone().into())
    }

    fn best(&self, sm: u32) -> Result<&Candidate, ImageError> {
        let runnable = self.candidates.iter().filter(|candidate| candidate.sm <= sm);
        runnable.max_by_key(|candidate| candidate.sm).ok_or_else(|| {
            match self.candidates.iter().map(|candidate| candidate.sm).min() {
                Some(needs) => ImageError::TooNew { needs, has: sm },
                None => ImageError::NoPtx {
                    machine_code: self.has_machine_code,
                },
            }
        })
    }
}

/// The `NN` of the text's `.target sm_NN`; the parser judges everything else about it.
fn target(text: &[u8]) -> Option<u32> {
    let at = text.windows(8).position(|window| window == b".target ")?;
    let rest = &text[at + 8..];
    let name = rest
        .iter()
        .position(|&byte| !byte.is_ascii_whitespace())
        .map(|start| &rest[start..])?;
    let digits = name.strip_prefix(b"sm_")?;
    let digits = &digits[..digits
        .iter()
        .take(4)
        .take_while(|byte| byte.is_ascii_digit())
        .count()];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_found_where_the_text_has_one() {
        assert_eq!(target(b".version 8.0\n.target sm_75\n"), Some(75));
        assert_eq!(target(b".target   sm_90a, debug"), Some(90));
        assert_eq!(target(b".target sm_"), None);
        assert_eq!(target(b".target "), None);
        assert_eq!(target(b""), None);
    }

    #[test]
    fn the_newest_runnable_text_is_chosen() {
        let mut image = Image::from_text(b".target sm_80 // a\n");
        image.extend(Image::from_text(b".target sm_75 // b\n"));
        image.extend(Image::from_text(b".target sm_90 // c\n"));
        assert_eq!(image.text(89).unwrap(), b".target sm_80 // a\n");
        assert_eq!(image.text(75).unwrap(), b".target sm_75 // b\n");
        assert_eq!(image.text(70), Err(ImageError::TooNew { needs: 75, has: 70 }));
        assert_eq!(
            Image::from_elf().text(90),
            Err(ImageError::NoPtx { machine_code: true })
        );
    }
}
