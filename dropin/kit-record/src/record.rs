//! Where the notes go: a line each, with one write(2), to the end of the file.

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, open};

use crate::line::{LONGEST_NAME, Line};
use crate::seen::Seen;

static SEEN: Seen = Seen::new();
static FILE: OnceLock<CString> = OnceLock::new();

/// Sets the file, once.
pub(crate) fn record_to(path: CString) {
    let _set_once = FILE.set(path);
}

/// Writes a line down, once in a process.
pub(crate) fn note(line: &Line) {
    if let Some(file) = FILE.get()
        && !line.bytes().is_empty()
        && SEEN.insert(line.bytes())
    {
        write(file, line.bytes());
    }
}

/// Opens the file for this line alone: a program may close descriptors that it did not open, and use their numbers
/// again. A line that cannot be written is lost, since the program's own work must go on.
fn write(file: &CStr, line: &[u8]) {
    // A path that is no file, such as a pipe without a reader, must not keep the program waiting.
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NOCTTY
        | OFlags::NONBLOCK;
    if let Ok(file) = open(file, flags, Mode::RUSR | Mode::WUSR) {
        let _lost = rustix::io::write(&file, line);
    }
}

/// A name, copied: the program's text may have no end.
pub(crate) struct Name {
    bytes: [u8; LONGEST_NAME],
    length: usize,
}

impl Name {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// # Safety
/// `text` is a C string, or null.
pub(crate) unsafe fn name_at(text: *const c_char) -> Name {
    let mut name = Name {
        bytes: [0; LONGEST_NAME],
        length: 0,
    };
    if text.is_null() {
        return name;
    }
    for (at, place) in name.bytes.iter_mut().enumerate() {
        // SAFETY: no byte before this one was the string's end.
        *place = unsafe { *text.add(at) } as u8;
        if *place == 0 {
            break;
        }
        name.length += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_appended_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("asked");
        std::fs::write(&path, "before\n").expect("written");
        record_to(CString::new(path.to_str().expect("text")).expect("no NUL"));
        for _ in 0..3 {
            note(&Line::table([7; 16], false));
            note(&Line::entry(b"cuInit", 12000, 0, true));
        }
        let text = std::fs::read_to_string(&path).expect("there");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.starts_with("before\n{\"table\":\"0707"), "{text}");
    }

    #[test]
    fn a_name_is_read_to_its_end_and_no_further_than_a_name_is_long() {
        // SAFETY: C strings, or null.
        let read = |text: *const c_char| unsafe { name_at(text) }.bytes().to_vec();
        assert_eq!(read(c"cuInit".as_ptr()), b"cuInit");
        assert_eq!(read(core::ptr::null()), b"");
        let endless = [b'x'; LONGEST_NAME];
        assert_eq!(read(endless.as_ptr().cast()), endless);
    }
}
