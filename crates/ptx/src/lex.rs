//! Bytes to tokens. Works on untrusted input: every byte either belongs to a token or is an error with its place.

use crate::error::ParseError;

/// What a token is; the text of words lives in the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind<'a> {
    /// `add`, `%r1`, `$L__BB0_1`, `_`.
    Word(&'a str),
    /// `.global`, `.v4`, `.shared::cta`, without the leading dot.
    Dot(&'a str),
    /// An integer literal.
    Int(u64),
    /// `0f…`: the bits of an f32.
    F32(u32),
    /// `0d…` or a decimal fraction: the bits of an f64.
    F64(u64),
    /// A quoted string, quotes removed.
    Str(&'a [u8]),
    /// One punctuation byte.
    Punct(u8),
    End,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub kind: Kind<'a>,
    pub line: u32,
    pub column: u32,
}

impl Token<'_> {
    pub fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError::new(self.line, self.column, message)
    }

    /// How the token reads in a message.
    pub fn describe(&self) -> String {
        match self.kind {
            Kind::Word(w) => format!("`{w}`"),
            Kind::Dot(w) => format!("`.{w}`"),
            Kind::Int(v) => format!("`{v}`"),
            Kind::F32(_) | Kind::F64(_) => "a floating-point number".into(),
            Kind::Str(_) => "a string".into(),
            Kind::Punct(c) => format!("`{}`", c as char),
            Kind::End => "the end of the text".into(),
        }
    }
}

pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c == b'$'
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a [u8]) -> Lexer<'a> {
        Lexer {
            text,
            at: 0,
            line: 1,
            line_start: 0,
        }
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn column(&self) -> u32 {
        u32::try_from(self.at - self.line_start)
            .unwrap_or(u32::MAX)
            .saturating_add(1)
    }

    fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError::new(self.line, self.column(), message)
    }

    fn newline(&mut self) {
        self.at += 1;
        self.line = self.line.saturating_add(1);
        self.line_start = self.at;
    }

    /// The byte after the last token.
    pub fn at_byte(&self) -> u8 {
        self.byte(0)
    }

    /// Drops the rest of the line: `.loc`, `.file` and `@@DWARF` have no other end.
    pub fn skip_line(&mut self) {
        while self.at < self.text.len() && self.text[self.at] != b'\n' {
            self.at += 1;
        }
    }

    /// The rest of the line, which `.loc` and `.file` are read from.
    pub fn rest_of_line(&mut self) -> &'a [u8] {
        let from = self.at;
        self.skip_line();
        &self.text[from..self.at]
    }

    fn skip_blank(&mut self) -> Result<(), ParseError> {
        while self.at < self.text.len() {
            match (self.text[self.at], self.byte(1)) {
                (b'\n', _) => self.newline(),
                (b' ' | b'\t' | b'\r' | 0x0b | 0x0c, _) => self.at += 1,
                (b'/', b'/') => self.skip_line(),
                (b'/', b'*') => {
                    let open = self.error("a comment is not closed");
                    self.at += 2;
                    loop {
                        match (self.text.get(self.at), self.byte(1)) {
                            (None, _) => return Err(open),
                            (Some(b'*'), b'/') => break self.at += 2,
                            (Some(b'\n'), _) => self.newline(),
                            _ => self.at += 1,
                        }
                    }
                }
                (b'#', _) if self.column() == 1 => self.skip_line(),
                _ => break,
            }
        }
        Ok(())
    }

    fn take_word(&mut self, colons: bool) -> &'a str {
        let from = self.at;
        loop {
            if is_word(self.byte(0)) {
                self.at += 1;
            } else if colons && self.byte(0) == b':' && self.byte(1) == b':' && is_word(self.byte(2)) {
                self.at += 2;
            } else {
                break;
            }
        }
        // Only ASCII bytes were taken, and maybe one leading `%`.
        std::str::from_utf8(&self.text[from..self.at]).unwrap_or("")
    }

    /// The next token; `End` for ever at the end.
    pub fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let (line, column) = (self.line, self.column());
        let kind = match self.byte(0) {
            _ if self.at >= self.text.len() => Kind::End,
            b'%' if is_word(self.byte(1)) => {
                let from = self.at;
                self.at += 1;
                self.take_word(false);
                Kind::Word(std::str::from_utf8(&self.text[from..self.at]).unwrap_or(""))
            }
            b'.' if is_word(self.byte(1)) => {
                self.at += 1;
                Kind::Dot(self.take_word(true))
            }
            b'0'..=b'9' => self.number()?,
            c if is_word(c) => Kind::Word(self.take_word(false)),
            b'"' => {
                let open = self.error("a string is not closed");
                self.at += 1;
                let from = self.at;
                loop {
                    match self.text.get(self.at) {
                        None | Some(b'\n') => return Err(open),
                        Some(b'\\') => self.at += if self.at + 1 < self.text.len() { 2 } else { 1 },
                        Some(b'"') => break,
                        Some(_) => self.at += 1,
                    }
                }
                let text = &self.text[from..self.at];
                self.at += 1;
                Kind::Str(text)
            }
            c if c.is_ascii_graphic() => {
                self.at += 1;
                Kind::Punct(c)
            }
            c => return Err(self.error(format!("byte 0x{c:02x} does not belong to PTX"))),
        };
        Ok(Token { kind, line, column })
    }

    fn number(&mut self) -> Result<Kind<'a>, ParseError> {
        let start = self.error("");
        let fail = |message: &str| ParseError {
            message: message.into(),
            ..start.clone()
        };
        let (radix, skip) = match (self.byte(0), self.byte(1)) {
            (b'0', b'f' | b'F') => return self.float_bits(8, &start),
            (b'0', b'd' | b'D') => return self.float_bits(16, &start),
            (b'0', b'x' | b'X') => (16, 2),
            (b'0', b'b' | b'B') => (2, 2),
            (b'0', b'0'..=b'9') => (8, 1),
            _ => (10, 0),
        };
        let from = self.at;
        self.at += skip;
        let digits_from = self.at;
        let mut value = 0u64;
        while let Some(d) = (self.byte(0) as char).to_digit(16).filter(|d| *d < radix) {
            value = value
                .checked_mul(u64::from(radix))
                .and_then(|v| v.checked_add(u64::from(d)))
                .ok_or_else(|| fail("an integer literal is wider than 64 bits"))?;
            self.at += 1;
        }
        if self.at == digits_from {
            return Err(fail("an integer literal has no digits"));
        }
        let fraction = self.byte(0) == b'.' && self.byte(1).is_ascii_digit();
        let exponent = matches!(self.byte(0), b'e' | b'E')
            && (self.byte(1).is_ascii_digit()
                || (matches!(self.byte(1), b'+' | b'-') && self.byte(2).is_ascii_digit()));
        if radix == 10 && (fraction || exponent) {
            if fraction {
                self.at += 1;
                while self.byte(0).is_ascii_digit() {
                    self.at += 1;
                }
            }
            if matches!(self.byte(0), b'e' | b'E') {
                self.at += 1;
                if matches!(self.byte(0), b'+' | b'-') {
                    self.at += 1;
                }
                while self.byte(0).is_ascii_digit() {
                    self.at += 1;
                }
            }
            let text = std::str::from_utf8(&self.text[from..self.at]).unwrap_or("");
            let value: f64 = text.parse().map_err(|_| fail("a decimal number does not read"))?;
            return Ok(Kind::F64(value.to_bits()));
        }
        if matches!(self.byte(0), b'U' | b'u') {
            self.at += 1;
        }
        if is_word(self.byte(0)) {
            return Err(fail("a number runs into a word"));
        }
        Ok(Kind::Int(value))
    }

    fn float_bits(&mut self, digits: usize, start: &ParseError) -> Result<Kind<'a>, ParseError> {
        self.at += 2;
        let text = self.text.get(self.at..self.at + digits).unwrap_or(&[]);
        let bits = std::str::from_utf8(text)
            .ok()
            .filter(|t| t.bytes().all(|c| c.is_ascii_hexdigit()));
        let Some(bits) = bits.and_then(|t| u64::from_str_radix(t, 16).ok()) else {
            return Err(ParseError {
                message: format!("a floating-point literal needs {digits} hex digits"),
                ..start.clone()
            });
        };
        self.at += digits;
        if digits == 8 {
            Ok(Kind::F32(bits as u32))
        } else {
            Ok(Kind::F64(bits))
        }
    }
}
