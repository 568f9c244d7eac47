//! An argument as text: `bytesize=4096`, `dptr=[0x7f5c00200000]`, `pciBusId="0000:01:00.0"`, `hStream=null`.
//!
//! Which text a type has is found where a drop-in's export is compiled, by method resolution: a pointer to something that
//! can be printed shows what it points to, anything else that can be printed shows itself, and the rest its size.

use core::fmt::{Debug, Write};
use core::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::roles::Role;

/// Elements of a list that are shown.
const ELEMENTS: usize = 4;
/// Bytes of a string that are shown.
const LETTERS: usize = 64;
/// Letters of a value that are shown.
const LONGEST: usize = 240;

/// How an argument is to be shown.
#[derive(Debug, Clone, Copy)]
pub struct How<'a> {
    /// Its type, as Rust spells it.
    pub of: &'a str,
    /// What it is for.
    pub role: Role,
    /// Elements that it points to.
    pub count: u64,
    /// The call succeeded.
    pub succeeded: bool,
}

/// Writes the argument at an address.
///
/// # Safety
/// The address is that of an argument of the type that the printer was found for.
pub type Printer = unsafe fn(*const (), &How<'_>, &mut String);

/// Finds the printer of a type: `(&&&Probe::<T>::NEW).printer()` with all three traits in scope.
pub struct Probe<T>(PhantomData<T>);

impl<T> Probe<T> {
    /// It.
    pub const NEW: Probe<T> = Probe(PhantomData);
}

/// Pointers to what can be printed.
pub trait AsPointer {
    /// The printer.
    fn printer(&self) -> Printer;
}

/// What can be printed.
pub trait AsDebug {
    /// The printer.
    fn printer(&self) -> Printer;
}

/// What cannot.
pub trait AsBytes {
    /// The printer.
    fn printer(&self) -> Printer;
}

impl<T: Copy + Debug> AsPointer for &&Probe<*mut T> {
    fn printer(&self) -> Printer {
        pointer::<T>
    }
}

impl<T: Copy + Debug> AsPointer for &&Probe<*const T> {
    fn printer(&self) -> Printer {
        pointer::<T>
    }
}

impl<T: Debug> AsDebug for &Probe<T> {
    fn printer(&self) -> Printer {
        value::<T>
    }
}

impl<T> AsBytes for Probe<T> {
    fn printer(&self) -> Printer {
        bytes::<T>
    }
}

/// # Safety
/// As for [`Printer`], of a `T`.
unsafe fn value<T: Debug>(at: *const (), how: &How<'_>, into: &mut String) {
    // SAFETY: the caller says so.
    let value = unsafe { &*at.cast::<T>() };
    one(value, how, into);
}

/// # Safety
/// As for [`Printer`], of a `T`.
unsafe fn bytes<T>(_: *const (), _: &How<'_>, into: &mut String) {
    let _ = write!(into, "{{{} bytes}}", size_of::<T>());
}

/// # Safety
/// As for [`Printer`], of a pointer to a `T`.
unsafe fn pointer<T: Copy + Debug>(at: *const (), how: &How<'_>, into: &mut String) {
    // SAFETY: the caller says so.
    let address = unsafe { *at.cast::<*const T>() } as u64;
    if address == 0 {
        into.push_str("null");
        return;
    }
    let shown = (how.succeeded || !how.role.is_output)
        && match how.of.contains("c_char") && size_of::<T>() == 1 {
            true => string(address, into),
            false => list::<T>(address, how, into),
        };
    if !shown {
        let _ = write!(into, "{address:#x}");
    }
}

fn list<T: Copy + Debug>(address: u64, how: &How<'_>, into: &mut String) -> bool {
    let count = usize::try_from(how.count).unwrap_or(usize::MAX);
    let begin = into.len();
    into.push('[');
    for element in 0..count.min(ELEMENTS) {
        let Some(read) = read::<T>(address.wrapping_add((element * size_of::<T>()) as u64)) else {
            into.truncate(begin);
            return false;
        };
        if element > 0 {
            into.push_str(", ");
        }
        one(&read, how, into);
    }
    into.push_str(if count > ELEMENTS { ", ...]" } else { "]" });
    true
}

fn one<T: Debug>(value: &T, how: &How<'_>, into: &mut String) {
    let begin = into.len();
    let addresses = ["CUdeviceptr", "CUmemGenericAllocationHandle", "Object"];
    let _ = match addresses.iter().any(|name| how.of.contains(name)) {
        true => write!(into, "{value:#x?}"),
        false => write!(into, "{value:?}"),
    };
    if &into[begin..] == "0x0" || &into[begin..] == "None" {
        into.truncate(begin);
        into.push_str("null");
    }
    if let Some((end, _)) = into[begin..].char_indices().nth(LONGEST) {
        into.truncate(begin + end);
        into.push_str("...");
    }
}

/// The string at an address, or the address.
pub fn text(address: u64) -> String {
    let mut text = String::new();
    if !string(address, &mut text) {
        let _ = write!(text, "{address:#x}");
    }
    text
}

/// A string, up to its end or to what cannot be read.
fn string(address: u64, into: &mut String) -> bool {
    let mut letters = [0; LETTERS];
    let in_page = 4096 - (address % 4096) as usize;
    let first = in_page.min(LETTERS);
    if !peek(address, &mut letters[..first]) {
        return false;
    }
    let mut known = first;
    if first < LETTERS
        && !letters[..first].contains(&0)
        && peek(address + first as u64, &mut letters[first..])
    {
        known = LETTERS;
    }
    let end = letters[..known].iter().position(|letter| *letter == 0);
    let text = String::from_utf8_lossy(&letters[..end.unwrap_or(known)]);
    let _ = write!(into, "{text:?}{}", if end.is_none() { "..." } else { "" });
    true
}

/// Reads a value of the program's memory; None where nothing is mapped.
///
/// The types are those of CUDA's interface, of which any bytes are a value: numbers, enumerations as numbers, pointers, and
/// structures of these.
fn read<T: Copy>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes are this function's, and zeroed.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    // SAFETY: any bytes are a value of it (above).
    peek(address, bytes).then(|| unsafe { value.assume_init() })
}

/// Reads memory of this process that may not be there: a wrong pointer is the driver's to judge, not ours to die of.
fn peek(address: u64, into: &mut [u8]) -> bool {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the kernel checks the remote side; the local side is the caller's buffer.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read) == Ok(into.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_abi::{CUDA_ERROR_INVALID_VALUE, CUresult, CUstream, c_char, c_void};

    fn shown<T>(argument: T, printer: Printer, how: How<'_>) -> String {
        let mut text = String::new();
        // SAFETY: each caller here takes the printer from a probe of T.
        unsafe { printer((&raw const argument).cast(), &how, &mut text) };
        text
    }

    const HOW: How<'static> = How {
        of: "",
        role: Role {
            is_output: false,
            count: None,
        },
        count: 1,
        succeeded: true,
    };

    macro_rules! text {
        ($of:ty, $argument:expr, $how:expr) => {
            shown::<$of>($argument, (&&&Probe::<$of>::NEW).printer(), $how)
        };
    }

    #[derive(Clone, Copy)]
    struct Silent(#[allow(dead_code, reason = "it has a size and no text")] [u8; 24]);

    #[test]
    fn each_type_has_its_text() {
        assert_eq!(text!(u32, 7, HOW), "7");
        assert_eq!(
            text!(CUresult, CUDA_ERROR_INVALID_VALUE, HOW),
            "CUDA_ERROR_INVALID_VALUE"
        );
        assert_eq!(text!(CUstream, std::ptr::null_mut(), HOW), "null");
        assert_eq!(text!(CUstream, 0x10 as CUstream, HOW), "0x10");
        assert_eq!(text!(*mut c_void, 0x20 as *mut c_void, HOW), "0x20");
        assert_eq!(text!(Silent, Silent([0; 24]), HOW), "{24 bytes}");
        let address = How {
            of: "$crate::CUdeviceptr",
            ..HOW
        };
        assert_eq!(text!(u64, 0xff00, address), "0xff00");
    }

    #[test]
    fn pointers_show_what_they_point_to() {
        let mut numbers = [1_i32, 2, 3, 4, 5];
        assert_eq!(text!(*mut i32, numbers.as_mut_ptr(), HOW), "[1]");
        assert_eq!(
            text!(*mut i32, numbers.as_mut_ptr(), How { count: 5, ..HOW }),
            "[1, 2, 3, 4, ...]"
        );
        assert_eq!(text!(*const i32, std::ptr::null(), HOW), "null");
        let how = How {
            of: "*const c_char",
            ..HOW
        };
        assert_eq!(text!(*const c_char, c"a\"b".as_ptr(), how), r#""a\"b""#);
        let long = std::ffi::CString::new(vec![b'x'; 100]).expect("no NUL");
        assert_eq!(
            text!(*const c_char, long.as_ptr(), how),
            format!("\"{}\"...", "x".repeat(64))
        );
    }

    #[test]
    fn wrong_pointers_and_outputs_of_failed_calls_are_addresses() {
        assert_eq!(text!(*mut i32, 8 as *mut i32, HOW), "0x8");
        let how = How {
            of: "*const c_char",
            ..HOW
        };
        assert_eq!(text!(*const c_char, 8 as *const c_char, how), "0x8");
        let mut number = 1_i32;
        let failed = How {
            role: Role {
                is_output: true,
                count: None,
            },
            succeeded: false,
            ..HOW
        };
        assert!(text!(*mut i32, &raw mut number, failed).starts_with("0x"));
    }
}
