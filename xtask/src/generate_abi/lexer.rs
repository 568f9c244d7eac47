//! Tokens of preprocessed C, keeping only those that come from the vendor's own headers.

use anyhow::bail;

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A keyword or a name.
    Name(String),
    /// An integer literal.
    Number(i128),
    /// Punctuation, one character each.
    Sign(char),
}

/// Headers of the runtime's types.
const RUNTIME: &[&str] = &["driver_types.h", "surface_types.h", "texture_types.h"];

/// Splits the preprocessor's output (with its line markers) into tokens.
///
/// Tokens from files whose name does not start with `cuda` or `nvml` (the C library's headers) are dropped.
pub fn tokens(preprocessed: &str) -> anyhow::Result<Vec<Token>> {
    let mut out = Vec::new();
    let mut wanted = false;
    for line in preprocessed.lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            let file = marker.split('"').nth(1).unwrap_or_default();
            let name = file.rsplit('/').next().unwrap_or_default();
            wanted = name.starts_with("cuda") || name.starts_with("nvml") || RUNTIME.contains(&name);
        } else if wanted {
            line_tokens(line, &mut out)?;
        }
    }
    Ok(out)
}

/// Splits one line, or one macro's body.
pub fn line_tokens(line: &str, out: &mut Vec<Token>) -> anyhow::Result<()> {
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if first.is_ascii_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (word, tail) = rest.split_at(end);
        out.push(if first.is_ascii_digit() {
            Token::Number(number(word)?)
        } else if end > 1 || first.is_ascii_alphabetic() {
            Token::Name(word.to_owned())
        } else {
            Token::Sign(first)
        });
        rest = tail.trim_start();
    }
    Ok(())
}

fn number(word: &str) -> anyhow::Result<i128> {
    let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
    let value = if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        i128::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        i128::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    match value {
        Ok(value) => Ok(value),
        Err(error) => bail!("Not an integer literal: {word} ({error})"),
    }
}
