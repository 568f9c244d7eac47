//! Queries of NVML to a server over a library that touches all that it is given.

use std::cell::Cell;

use divvy_abi::nvml::*;

use super::Done;
use crate::nvml::queries::{self, Query};
use crate::nvml::server::Server;
use crate::nvml::wire::MOST;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The handles of this library's devices, and one that no list of devices has.
const DEVICES: [usize; 2] = [0x10, 0x20];
const ANOTHER: usize = 0x30;

macro_rules! library {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case)]
        mod library {
            use super::*;
            $(
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $result {
                    // SAFETY: the server's arguments: that they can be touched is what is tested.
                    AsCode::of_code(unsafe { touch(Symbol::$name, &[$(word($parameter)),*]) })
                }
            )*
        }

        static LIBRARY: Table = Table { $($name: library::$name,)* };
    };
}

divvy_abi::nvml_functions! { [library] }

/// Reads and writes all that the arguments lead to.
///
/// # Safety
/// As NVML's reference says for this symbol.
unsafe fn touch(symbol: Symbol, words: &[Word]) -> nvmlReturn_t {
    CALLS.set(CALLS.get() + 1);
    match symbol {
        Symbol::nvmlInit_v2 => return NVML_SUCCESS,
        Symbol::nvmlDeviceGetHandleByIndex_v2 if words[0].addr() < DEVICES.len() && !words[1].is_null() => {
            let device = core::ptr::without_provenance_mut(DEVICES[words[0].addr()]);
            // SAFETY: a place for a handle.
            unsafe { words[1].cast::<Word>().write(device) };
            return NVML_SUCCESS;
        }
        Symbol::nvmlDeviceGetCount_v2 if !words[0].is_null() => {
            // SAFETY: a place for a number.
            unsafe { words[0].cast::<u32>().write(DEVICES.len() as u32) };
            return NVML_SUCCESS;
        }
        _ => {}
    }
    let query = queries::of(symbol).expect("only what is served is called");
    // Read before anything is written: the place of a count is a place for a result, too.
    // SAFETY: as above.
    let room = query.counted.map(|counted| unsafe {
        let room = count(query, words[counted.count], counted.count);
        (counted.list, room)
    });
    for (at, (word, parameter)) in words.iter().zip(&query.parameters).enumerate() {
        let count = room.filter(|(list, _)| *list == at).map_or(1, |(_, room)| room);
        match parameter {
            Parameter::Device => assert!(
                DEVICES.contains(&word.addr()),
                "{symbol}: a handle that was never given"
            ),
            Parameter::Number(_) => {}
            _ if word.is_null() => {}
            // SAFETY: a place for a handle.
            Parameter::NewDevice => unsafe { word.cast::<usize>().write(ANOTHER) },
            Parameter::Text { constant: true } => {
                // SAFETY: a C string.
                let text = unsafe { std::ffi::CStr::from_ptr(word.cast()) };
                assert!(text.count_bytes() <= crate::nvml::wire::MOST_STRING);
            }
            // SAFETY: a place for so many characters.
            Parameter::Text { .. } => unsafe { word.cast::<u8>().write_bytes(b'x', count) },
            Parameter::Pointer { bytes, constant } => {
                if query.versioned == Some(at) {
                    // SAFETY: a structure that begins with its version.
                    let version = unsafe { word.cast::<u32>().read() };
                    assert_eq!(
                        (version & 0x00ff_ffff) as usize,
                        *bytes,
                        "{symbol}: another structure"
                    );
                }
                // SAFETY: so many values.
                let values = unsafe { std::slice::from_raw_parts_mut(word.cast::<u8>(), bytes * count) };
                std::hint::black_box(values.iter().fold(0_u8, |sum, byte| sum ^ byte));
                // A library that says of more than there was room for: the server must not read that far.
                if !constant {
                    values.fill(0xee);
                }
            }
            Parameter::Handle => panic!("{symbol}: a handle of a kind that is not served"),
        }
    }
    match CALLS.get() % 4 {
        0 => NVML_ERROR_INSUFFICIENT_SIZE,
        1 => NVML_ERROR_NOT_SUPPORTED,
        _ => NVML_SUCCESS,
    }
}

/// How many elements a list has room for.
///
/// # Safety
/// The word is what this query says of its place.
unsafe fn count(query: &Query, word: Word, place: usize) -> usize {
    match query.parameters[place] {
        Parameter::Number(_) => word.addr() as u32 as usize,
        _ if word.is_null() => 0,
        // SAFETY: a place for a number.
        _ => unsafe { word.cast::<u32>().read() as usize },
    }
}

/// Sends the queries that these bytes stand for. Each begins with three bytes: which query, how it is made, and how many
/// bytes make it. Those are its body as they are, or a source of arguments.
///
/// # Panics
/// The library was given a handle that it never gave, or a structure of another size.
pub fn queries(bytes: &[u8]) -> Done {
    CALLS.set(0);
    let server = Server::new(&LIBRARY);
    let mut answer = vec![0; MOST];
    let mut done = Done::default();
    let mut rest = bytes;
    while let [which, how, length, behind @ ..] = rest {
        let (source, next) = behind.split_at((*length as usize).min(behind.len()));
        rest = next;
        let query = &queries::all()[*which as usize % queries::all().len()];
        let mut message = query.id.to_le_bytes().to_vec();
        message.extend((done.made as u64).to_le_bytes());
        match how % 3 {
            0 => message.extend(source),
            1 => generate(query, source, &mut message),
            _ => message = source.to_vec(),
        }
        match server.answer(&message, &mut answer) {
            Ok(length) => {
                assert!((12..=MOST).contains(&length));
                done.made += 1;
            }
            Err(_) => done.refused += 1,
        }
    }
    done.calls = CALLS.get();
    done
}

/// Arguments of the right kinds, from a source of bytes that never ends.
fn generate(query: &Query, source: &[u8], into: &mut Vec<u8>) {
    let mut source = source.iter().copied().chain(std::iter::repeat(1));
    let mut byte = move || source.next().unwrap_or(1);
    for (at, parameter) in query.parameters.iter().enumerate() {
        if let Some((_, element, is_read)) = query.list().filter(|(counted, ..)| counted.list == at) {
            let present = byte() & 1;
            into.push(present);
            if present == 1 {
                let count = u32::from(byte()) * u32::from(byte() % 16);
                into.extend(count.to_le_bytes());
                if is_read {
                    into.extend((0..count as usize * element).map(|at| at as u8));
                }
            }
            continue;
        }
        match parameter {
            Parameter::Number(_) => into.extend([byte(), byte(), byte(), byte(), 0, 0, 0, byte()]),
            Parameter::Device => into.extend((0xd1_0000 + u64::from(byte() % 3)).to_le_bytes()),
            Parameter::NewDevice => into.push(byte() & 1),
            Parameter::Pointer { bytes, .. } => {
                let present = byte() & 1;
                into.push(present);
                if present == 1 {
                    let start = into.len();
                    into.extend((0..*bytes).map(|_| byte()));
                    if query.versioned == Some(at) && byte() != 0 {
                        into[start..start + 4].copy_from_slice(&(*bytes as u32 | 1 << 24).to_le_bytes());
                    }
                }
            }
            _ => {
                let length = u32::from(byte() % 64);
                into.extend(length.to_le_bytes());
                into.extend((0..length).map(|_| byte() | 1));
            }
        }
    }
}
