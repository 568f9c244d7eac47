//! The linker (cuLink*): takes PTX and gives PTX. There is no machine code to make, so its result is the text itself,
//! which the module and library calls accept.

use crate::image::fatbin::{FatbinError, MAX_TOGETHER};
use crate::image::{Image, ImageError};
use crate::jit::JitOptions;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open linker.
pub struct Link {
    /// What the program holds.
    pub handle: u64,
    /// Compute capability it links for.
    pub sm: u32,
    /// Where the program wants messages.
    pub options: JitOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    texts: Vec<Vec<u8>>,
    /// What cuLinkComplete gave out; lives until the linker is destroyed.
    output: Option<Box<[u8]>>,
}

impl Link {
    /// A linker without input.
    pub fn new(handle: u64, sm: u32, options: JitOptions) -> Link {
        Link {
            handle,
            sm,
            options,
            state: Mutex::default(),
        }
    }

    /// Adds an image's PTX.
    pub fn add(&self, image: &Image) -> Result<(), ImageError> {
        // Parsed now, so that a fault is reported for the input it is in. The result is not kept: the linked text is
        // parsed again, whole, when it is loaded.
        if self.lock().texts.is_empty() {
            image.module(self.sm)?;
        }
        let text = image.text(self.sm)?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        let mut state = self.lock();
        let together: u64 = state.texts.iter().map(|text| text.len() as u64).sum();
        if together.saturating_add(end as u64) > MAX_TOGETHER {
            return Err(FatbinError::TooMuch.into());
        }
        state.texts.push(text[..end].to_vec());
        Ok(())
    }

    /// The linked image: address and size in bytes, its closing NUL included. Valid as long as the linker.
    pub fn complete(&self) -> Result<(u64, usize), ImageError> {
        let mut state = self.lock();
        if state.texts.is_empty() {
            return Err(ImageError::NoPtx { machine_code: false });
        }
        let mut text = merge(&state.texts);
        if let Some(most) = self.options.max_registers {
            text = bound_registers(&text, most);
        }
        Image::from_text(&text).module(self.sm)?;
        let output = state.output.insert(text.into_boxed_slice());
        Ok((output.as_ptr() as u64, output.len()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One PTX text of several: the directives that open a module may stand only once, and the newest of each holds
/// for all.
fn merge(texts: &[Vec<u8>]) -> Vec<u8> {
    let mut merged = Vec::new();
    if let [only] = texts {
        merged.extend_from_slice(only);
    } else {
        for directive in OPENING {
            let lines = texts.iter().flat_map(|text| text.split(|&byte| byte == b'\n'));
            let newest = lines
                .filter(|line| opens_with(line, directive))
                .max_by_key(|line| numbers(line));
            merged.extend_from_slice(newest.unwrap_or_default());
            merged.push(b'\n');
        }
        let mut taken = HashSet::new();
        for (number, text) in texts.iter().enumerate() {
            let text = &rename_local(text, number, &mut taken);
            for line in text.split(|&byte| byte == b'\n') {
                if !OPENING.iter().any(|directive| opens_with(line, directive)) {
                    merged.extend_from_slice(line);
                }
                // Every line stays where it was relative to its text, for the messages' sake.
                merged.push(b'\n');
            }
        }
    }
    merged.push(0);
    merged
}

/// The text with `.maxnreg` on each kernel that has none. Lines stay where they are.
fn bound_registers(text: &[u8], most: u32) -> Vec<u8> {
    const ENTRY: &[u8] = b".entry";
    let mut bounded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(ENTRY.len()).position(|window| window == ENTRY) {
        let Some(body) = rest[at..].iter().position(|&byte| byte == b'{') else {
            break;
        };
        let (head, tail) = rest.split_at(at + body);
        bounded.extend_from_slice(head);
        if !head[at..].windows(8).any(|window| window == b".maxnreg") {
            bounded.extend_from_slice(format!(".maxnreg {most} ").as_bytes());
        }
        rest = tail;
    }
    bounded.extend_from_slice(rest);
    bounded
}

const OPENING: [&[u8]; 3] = [b".version", b".target", b".address_size"];

/// The text with new names for some of its functions and variables: those that only it sees and that have the name of
/// one in an earlier text.
fn rename_local(text: &[u8], number: usize, taken: &mut HashSet<Vec<u8>>) -> Vec<u8> {
    let lines = text.split(|&byte| byte == b'\n');
    let clashing: HashSet<Vec<u8>> = lines
        .filter_map(local_name)
        .map(<[u8]>::to_vec)
        .filter(|name| !taken.insert(name.clone()))
        .collect();
    let mut renamed = Vec::with_capacity(text.len());
    for word in text.chunk_by(|&a, &b| is_name(a) == is_name(b)) {
        renamed.extend_from_slice(word);
        if clashing.contains(word) {
            renamed.extend_from_slice(format!("$in{number}").as_bytes());
        }
    }
    renamed
}

/// The name a line declares without linkage: `.func name(`, `.func (…) name(` or `.global … name`.
fn local_name(line: &[u8]) -> Option<&[u8]> {
    let line = line.trim_ascii_start();
    let declared = if let Some(rest) = line.strip_prefix(b".func") {
        let rest = rest.trim_ascii_start();
        // Results stand in parentheses before the name.
        if rest.starts_with(b"(") {
            &rest[rest.iter().position(|&byte| byte == b')')? + 1..]
        } else {
            rest
        }
    } else if line.starts_with(b".global") || line.starts_with(b".const") {
        let end = line.iter().position(|byte| b"[=;".contains(byte))?;
        let before = line[..end].trim_ascii_end();
        &before[before.iter().rposition(u8::is_ascii_whitespace)? + 1..]
    } else {
        return None;
    };
    let declared = declared.trim_ascii_start();
    let name = &declared[..declared.iter().take_while(|&&byte| is_name(byte)).count()];
    (!name.is_empty()).then_some(name)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

fn opens_with(line: &[u8], directive: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(directive)
}

/// The numbers in a line, for comparing versions: `.version 8.10` is newer than `.version 8.9`.
fn numbers(line: &[u8]) -> Vec<u64> {
    let digits = line
        .split(|byte| !byte.is_ascii_digit())
        .filter(|digits| !digits.is_empty());
    digits
        .map(|digits| {
            digits
                .iter()
                .take(9)
                .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_on_registers_goes_to_kernels_without_one() {
        let text = b".entry a()\n{ret;}\n.func f(){}\n.visible .entry b(.param .u32 n)\n.maxnreg 9\n{ret;}\n";
        let bounded = String::from_utf8(bound_registers(text, 38)).unwrap();
        assert_eq!(
            bounded,
            ".entry a()\n.maxnreg 38 {ret;}\n.func f(){}\n.visible .entry b(.param .u32 n)\n.maxnreg 9\n{ret;}\n"
        );
    }

    #[test]
    fn names_that_only_one_text_sees_do_not_clash() {
        let text =
            b".version 8.0\n.global .align 1 .b8 $str[2] = {65, 0};\n.func (.param .b32 r) f(\n)\n{ ret; }\n\
            .visible .func g(){ call f, $str; call ff; }\n";
        let other = String::from_utf8(text.to_vec()).unwrap().replace(" g(", " h(");
        let merged = String::from_utf8(merge(&[text.to_vec(), other.into_bytes()])).unwrap();
        for once in [
            " f(",
            " f$in1(",
            "call f,",
            "call f$in1, $str$in1;",
            "$str[2]",
            "$str$in1[2]",
            " g(",
            " h(",
        ] {
            assert_eq!(merged.matches(once).count(), 1, "{once} in {merged}");
        }
        assert_eq!(merged.matches("call ff;").count(), 2, "{merged}");
    }

    #[test]
    fn one_text_passes_unchanged_and_several_share_one_opening() {
        let one = b".version 8.9\n.target sm_75\n.address_size 64\n.func a\n".to_vec();
        let two = b"//x\n.version 8.10\n.target sm_80\n.address_size 64\n.func b".to_vec();
        assert_eq!(merge(std::slice::from_ref(&one)), [&one[..], b"\0"].concat());
        let merged = String::from_utf8(merge(&[one, two])).unwrap();
        assert!(
            merged.starts_with(".version 8.10\n.target sm_80\n.address_size 64\n"),
            "{merged}"
        );
        assert_eq!(merged.matches(".version").count(), 1);
        assert!(merged.contains(".func a\n") && merged.ends_with(".func b\n\0"));
    }
}
