//! The linker: inputs are sent as images are; logs and the result come back, and are kept for the program.
#![allow(non_snake_case)]

use core::ffi::CStr;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_abi::*;

use super::arguments::{put_string, write_name};
use super::{module, new_name, thread};
use crate::fork::OfProcess;
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{LINK_ADD, LINK_COMPLETE, LINK_CREATE, LINK_DESTROY, LINK_READ};
use crate::wire::{Malformed, Reader};

/// What a linker gives has no more bytes than this: a server that tells of more does not fill the program's memory.
const MOST_RESULT: u64 = 1 << 28;

/// A log's place in the program: the buffer, and the option's value to which its length is written.
#[derive(Clone, Copy, Default)]
struct Log {
    buffer: usize,
    bytes: u32,
    value: usize,
}

/// What has come of a linker's result, and how many bytes it has.
#[derive(Debug, Default)]
struct Coming {
    bytes: Vec<u8>,
    length: u64,
}

impl Coming {
    fn of(length: u64) -> Result<Self, Malformed> {
        if length > MOST_RESULT {
            return Err(Malformed);
        }
        let bytes = Vec::new();
        Ok(Self { bytes, length })
    }

    fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.length
    }

    /// Takes the next part. A server that sends nothing would be asked for ever.
    fn take(&mut self, part: &[u8]) -> Result<(), Malformed> {
        let left = self.length - self.bytes.len() as u64;
        if part.is_empty() || part.len() as u64 > left {
            return Err(Malformed);
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

/// What the program and this library share of a linker: the program keeps its logs' buffers until the linker ends, and the
/// linker keeps what came out.
#[derive(Default)]
struct Linking {
    logs: [Log; 2],
    result: Box<[u8]>,
}

static LINKERS: OfProcess<Mutex<Option<HashMap<u64, Linking>>>> = OfProcess::new();

fn linkers() -> MutexGuard<'static, Option<HashMap<u64, Linking>>> {
    LINKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The logs that the options ask for.
///
/// # Safety
/// Both lists have so many entries, and are there until the linker ends.
unsafe fn logs(count: u32, keys: *mut CUjit_option, values: *mut *mut c_void) -> [Log; 2] {
    let mut logs = [Log::default(); 2];
    if keys.is_null() || values.is_null() {
        return logs;
    }
    for at in 0..count as usize {
        // SAFETY: the caller vouches for the lists.
        let (key, value) = unsafe { (keys.add(at).read(), values.add(at)) };
        // SAFETY: as above.
        let word = unsafe { value.read() }.expose_provenance();
        match key {
            CU_JIT_INFO_LOG_BUFFER => logs[0].buffer = word,
            CU_JIT_ERROR_LOG_BUFFER => logs[1].buffer = word,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => logs[0].measure(word, value),
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => logs[1].measure(word, value),
            _ => {}
        }
    }
    logs
}

impl Log {
    /// Notes how long it is, and where its length is to be written.
    fn measure(&mut self, bytes: usize, value: *mut *mut c_void) {
        self.bytes = bytes as u32;
        self.value = value.expose_provenance();
    }

    /// Bytes that the server keeps for it.
    fn wanted(self) -> u32 {
        if self.buffer == 0 { 0 } else { self.bytes }
    }

    /// Shows the program the text.
    fn show(self, text: &[u8]) {
        let length = text.len().min((self.wanted() as usize).saturating_sub(1));
        if self.wanted() != 0 {
            let buffer = std::ptr::with_exposed_provenance_mut::<u8>(self.buffer);
            // SAFETY: the program gave a buffer of so many bytes until the linker ends; the text and its end fit.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, length);
                buffer.add(length).write(0);
            }
        }
        if self.value != 0 {
            let value = std::ptr::with_exposed_provenance_mut::<*mut c_void>(self.value);
            // SAFETY: the program gave the list of values until the linker ends.
            unsafe { value.write(std::ptr::without_provenance_mut(length)) };
        }
    }
}

/// Takes both logs from an answer, and shows them.
fn take_logs(state: u64, answer: &mut Reader<'_>) -> Result<(), Malformed> {
    // A call that stopped before the driver answers nothing.
    if answer.rest().is_empty() {
        return Ok(());
    }
    let logs = linkers()
        .as_ref()
        .and_then(|all| all.get(&state))
        .map(|linking| linking.logs);
    for at in 0..2 {
        let text = answer.list(1)?.unwrap_or_default();
        if let Some(logs) = logs {
            logs[at].show(text);
        }
    }
    Ok(())
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuLinkCreate_v2(
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
    stateOut: *mut CUlinkState,
) -> CUresult {
    if stateOut.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program vouches for its lists.
    let logs = unsafe { logs(numOptions, options, optionValues) };
    // SAFETY: as above.
    let numbers = match unsafe { module::options(numOptions, options, optionValues) } {
        Ok(numbers) => numbers,
        Err(code) => return code,
    };
    let name = new_name(Kind::Linker);
    let linking = Linking {
        logs,
        ..Linking::default()
    };
    linkers().get_or_insert_default().insert(name, linking);
    let code = thread::call(
        LINK_CREATE,
        Symbol::cuLinkCreate_v2,
        |m| {
            m.plain(name);
            logs.iter().for_each(|log| m.plain(log.wanted()));
            module::put_options(m, &numbers);
        },
        |_, good| {
            if good {
                // SAFETY: the program vouches for its pointer.
                unsafe { write_name(stateOut, name) };
            }
            Ok(())
        },
    );
    if code != CUDA_SUCCESS {
        linkers().as_mut().and_then(|all| all.remove(&name));
    }
    code
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuLinkAddData_v2(
    state: CUlinkState,
    type_: CUjitInputType,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> CUresult {
    if data.is_null() || size == 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program vouches for its data and its lists.
    let (image, numbers) = unsafe {
        (
            std::slice::from_raw_parts(data.cast::<u8>(), size),
            module::options(numOptions, options, optionValues),
        )
    };
    match numbers {
        // SAFETY: the program vouches for its string.
        Ok(numbers) => unsafe { add(Symbol::cuLinkAddData_v2, state, type_, image, name, &numbers) },
        Err(code) => code,
    }
}

/// # Safety
/// As NVIDIA's reference says. The file is the program's: the server never sees its name as one.
pub unsafe extern "C-unwind" fn cuLinkAddFile_v2(
    state: CUlinkState,
    type_: CUjitInputType,
    path: *const c_char,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> CUresult {
    use std::os::unix::ffi::OsStrExt;
    if path.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program vouches for its string and its lists.
    let (file, numbers) = unsafe {
        (
            CStr::from_ptr(path),
            module::options(numOptions, options, optionValues),
        )
    };
    let numbers = match numbers {
        Ok(numbers) => numbers,
        Err(code) => return code,
    };
    match std::fs::read(std::ffi::OsStr::from_bytes(file.to_bytes())) {
        // SAFETY: as above.
        Ok(image) => unsafe { add(Symbol::cuLinkAddFile_v2, state, type_, &image, path, &numbers) },
        Err(_) => CUDA_ERROR_FILE_NOT_FOUND,
    }
}

/// # Safety
/// `name` is null or a C string.
unsafe fn add(
    symbol: Symbol,
    state: CUlinkState,
    kind: CUjitInputType,
    image: &[u8],
    name: *const c_char,
    options: &[(CUjit_option, u32)],
) -> CUresult {
    let sent = module::upload(symbol, image);
    if sent != CUDA_SUCCESS {
        return sent;
    }
    thread::call(
        LINK_ADD,
        symbol,
        |m| {
            m.plain(state.bits());
            m.plain(kind);
            // SAFETY: promised by the caller.
            unsafe { put_string(m, name) };
            module::put_options(m, options);
        },
        |answer, _| take_logs(state.bits(), answer),
    )
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuLinkComplete(
    state: CUlinkState,
    cubinOut: *mut *mut c_void,
    sizeOut: *mut usize,
) -> CUresult {
    const SYMBOL: Symbol = Symbol::cuLinkComplete;
    let mut coming = Coming::default();
    let code = thread::call(
        LINK_COMPLETE,
        SYMBOL,
        |m| m.plain(state.bits()),
        |answer, good| {
            take_logs(state.bits(), answer)?;
            if good {
                coming = Coming::of(answer.plain()?)?;
            }
            Ok(())
        },
    );
    if code != CUDA_SUCCESS {
        return code;
    }
    while !coming.is_whole() {
        let at = coming.bytes.len() as u64;
        let put = |m: &mut crate::wire::Writer<'_>| {
            m.plain(state.bits());
            m.plain(at);
        };
        let code = thread::call(LINK_READ, SYMBOL, put, |answer, good| {
            if good { coming.take(answer.rest()) } else { Ok(()) }
        });
        if code != CUDA_SUCCESS {
            return code;
        }
    }
    let mut linkers = linkers();
    let Some(linking) = linkers.as_mut().and_then(|all| all.get_mut(&state.bits())) else {
        return CUDA_ERROR_INVALID_HANDLE;
    };
    linking.result = coming.bytes.into_boxed_slice();
    // SAFETY: the program vouches for its pointers; each may be null.
    unsafe {
        if !cubinOut.is_null() {
            cubinOut.write(linking.result.as_mut_ptr().cast());
        }
        if !sizeOut.is_null() {
            sizeOut.write(linking.result.len());
        }
    }
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuLinkDestroy(state: CUlinkState) -> CUresult {
    let put = |m: &mut crate::wire::Writer<'_>| m.plain(state.bits());
    let code = thread::call(LINK_DESTROY, Symbol::cuLinkDestroy, put, |_, _| Ok(()));
    linkers().as_mut().and_then(|all| all.remove(&state.bits()));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_the_bytes_that_were_told_and_no_more_than_a_program_can_keep() {
        assert!(Coming::of(u64::MAX).is_err() && Coming::of(MOST_RESULT + 1).is_err());
        assert!(Coming::of(MOST_RESULT).is_ok() && Coming::of(0).unwrap().is_whole());
        let mut coming = Coming::of(5).unwrap();
        assert!(coming.take(b"abc").is_ok() && !coming.is_whole());
        assert!(coming.take(b"").is_err() && coming.take(b"def").is_err());
        assert!(coming.take(b"de").is_ok() && coming.is_whole());
        assert_eq!(coming.bytes, b"abcde");
    }
}
