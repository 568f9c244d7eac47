//! A line of JSON, made in place: see the crate's page for why nothing is allocated.

use core::fmt::{self, Write};

/// A name is cut after so many bytes. The longest name of the driver's has 54.
pub(crate) const LONGEST_NAME: usize = 128;

/// Each byte of a name takes six at most, and the rest of a line takes fewer than 128.
const LONGEST: usize = 6 * LONGEST_NAME + 128;

/// One note, with its end of line.
pub(crate) struct Line {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Line {
    /// A name was bound in a library: by `dlsym`, or by a relocation.
    pub fn symbol(library: &[u8], name: &[u8], by_dlsym: bool) -> Self {
        let (library, name, by) = (
            Text(library),
            Text(name),
            if by_dlsym { "dlsym" } else { "relocation" },
        );
        Self::of(format_args!(
            r#"{{"symbol":"{name}","library":"{library}","by":"{by}"}}"#
        ))
    }

    /// `cuGetProcAddress` was asked for a name.
    pub fn entry(name: &[u8], version: i32, flags: u64, found: bool) -> Self {
        let name = Text(name);
        Self::of(format_args!(
            r#"{{"entry":"{name}","version":{version},"flags":{flags},"found":{found}}}"#
        ))
    }

    /// `cuGetExportTable` was asked for a table.
    pub fn table(uuid: [u8; 16], answered: bool) -> Self {
        let uuid = u128::from_be_bytes(uuid);
        Self::of(format_args!(r#"{{"table":"{uuid:032x}","answered":{answered}}}"#))
    }

    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut line = Self {
            bytes: [0; LONGEST],
            length: 0,
        };
        // A line that does not fit stays empty, and is not written.
        if writeln!(line, "{text}").is_err() {
            line.length = 0;
        }
        line
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// The text between the quotes of a JSON string. Bytes that are no plain text come as characters of the same number.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.0.iter().take(LONGEST_NAME);
        bytes.try_for_each(|byte| match byte {
            b'"' | b'\\' => write!(f, "\\{}", char::from(*byte)),
            b' '..=b'~' => f.write_char(char::from(*byte)),
            byte => write!(f, "\\u{byte:04x}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(line: &Line) -> Value {
        assert_eq!(line.bytes().iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(line.bytes().last(), Some(&b'\n'));
        serde_json::from_slice(line.bytes()).expect("JSON")
    }

    #[test]
    fn each_note_is_one_line_of_json() {
        assert_eq!(
            read(&Line::symbol(b"libcuda.so.1", b"cuInit", true)),
            json!({"symbol": "cuInit", "library": "libcuda.so.1", "by": "dlsym"})
        );
        assert_eq!(
            read(&Line::entry(b"cuMemAlloc", -1, u64::MAX, false)),
            json!({"entry": "cuMemAlloc", "version": -1, "flags": u64::MAX, "found": false})
        );
        let mut uuid = [0; 16];
        (uuid[0], uuid[15]) = (0x0b, 0xc1);
        assert_eq!(
            read(&Line::table(uuid, true)),
            json!({"table": "0b0000000000000000000000000000c1", "answered": true})
        );
    }

    #[test]
    fn a_name_that_is_no_name_stays_inside_its_line() {
        assert_eq!(
            read(&Line::entry(b"a\"\\\n\xff", 0, 0, false))["entry"],
            "a\"\\\n\u{ff}"
        );
        let long = [0x07; 10 * LONGEST_NAME];
        let line = read(&Line::symbol(b"libnvidia-ml.so.1", &long, false));
        assert_eq!(line["symbol"], "\u{7}".repeat(LONGEST_NAME));
        assert_eq!(
            read(&Line::entry(&long, i32::MIN, u64::MAX, false))["flags"],
            u64::MAX
        );
    }
}
