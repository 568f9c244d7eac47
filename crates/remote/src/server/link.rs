//! The linker: what is linked arrives as images do, and what comes out is read in parts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_abi::*;

use super::arguments::Used;
use super::{Call, Stop, module};
use crate::handle::Kind;
use crate::image;
use crate::wire::Writer;

/// A linker's memory. It is locked for a whole call: the driver uses it in each of a linker's calls.
pub type Shared = Arc<Mutex<Linking>>;

/// So many bytes of each log are kept for a program.
const MOST_LOG: u32 = 1 << 16;

/// A linker's memory, which the driver uses as long as the linker is there.
#[derive(Debug)]
pub struct Linking {
    keys: Vec<CUjit_option>,
    /// The options' values: numbers, sizes of logs, and addresses of logs.
    values: Vec<usize>,
    logs: [Box<[u8]>; 2],
    /// What came out: the driver's, and there as long as the linker is.
    result: (usize, usize),
}

/// The options of each log: where it is, and how long it is.
const LOGS: [[CUjit_option; 2]; 2] = [
    [CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES],
    [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES],
];

impl Linking {
    /// With these options, and logs of so many bytes; none of 0 bytes.
    fn new((keys, values): (Vec<CUjit_option>, Vec<*mut c_void>), logs: [u32; 2]) -> Self {
        let values = values.into_iter().map(<*mut c_void>::addr).collect();
        let logs = logs.map(|bytes| vec![0; bytes.min(MOST_LOG) as usize].into_boxed_slice());
        let mut linking = Self {
            keys,
            values,
            logs,
            result: (0, 0),
        };
        for (log, keys) in linking.logs.iter_mut().zip(LOGS) {
            if !log.is_empty() {
                linking.keys.extend(keys);
                linking
                    .values
                    .extend([log.as_mut_ptr().expose_provenance(), log.len()]);
            }
        }
        linking
    }

    /// The text of each log so far.
    fn texts(&self) -> [&[u8]; 2] {
        [0, 1].map(|at| {
            let log = &self.logs[at];
            // The driver writes a C string, and the size beside it is its own to write.
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            &log[..end]
        })
    }
}

/// Makes a linker: its name, the bytes of both logs, then options as of a load.
pub fn create(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let made = call.made(Kind::Linker)?;
    let logs = [call.message.plain()?, call.message.plain()?];
    let options = module::options(call)?;
    call.message.end()?;
    let mut linking = Linking::new(options, logs);
    // The logs are memory of ours that the program asked for: they count as images do.
    let loading = call.loading(linking.logs.iter().map(|log| log.len() as u64).sum())?;
    let context = call.current();
    let to = made.spot.pointer(call.arena.base());
    let (count, keys) = (linking.keys.len() as u32, linking.keys.as_mut_ptr());
    let values = linking.values.as_mut_ptr().cast();
    // SAFETY: the lists and the logs stay where they are until the linker is destroyed: a Vec or a Box that moves does not
    // move what it holds. The driver writes one handle to the arena.
    let code = unsafe { (call.driver.cuLinkCreate_v2)(count, keys, values, to) };
    if code == CUDA_SUCCESS
        && let Some(id) = made.id()
    {
        // Before its name may be used.
        let memory = Arc::new(Mutex::new(linking));
        call.server.tables().linkers.insert(id, memory);
        call.enter(made, context);
        loading.held_by(id);
    }
    Ok(code)
}

/// Adds the image that was sent: the linker, the kind of input, a name, then options.
pub fn add(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let linker = call.handle(Kind::Linker)?;
    let kind: CUjitInputType = call.message.plain()?;
    let name = call.string()?;
    let (mut keys, mut values) = module::options(call)?;
    call.message.end()?;
    let mut image = std::mem::take(call.upload);
    let length = image.len();
    let bytes = image::decompressed(&image);
    let loading = call.loading(bytes)?;
    // A text ends with a zero, whatever its sender said.
    image.extend_from_slice(&[0; 16]);
    let name = name.pointer(call.arena.base());
    let memory = memory(call, linker)?;
    let linking = locked(&memory);
    // SAFETY: the linker is there: a call that destroys it waits for this one. The image has as many bytes as is said, the
    // name ends with a zero, and the lists have as many entries as is said.
    let code = unsafe {
        let (data, count) = (image.as_mut_ptr().cast(), keys.len() as u32);
        (call.driver.cuLinkAddData_v2)(
            real(linker),
            kind,
            data,
            length,
            name,
            count,
            keys.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if let Some(id) = linker.id().filter(|_| code == CUDA_SUCCESS) {
        loading.held_by(id);
    }
    put_logs(&mut call.answer, &linking);
    Ok(code)
}

/// Links. The answer has the logs, then the length of what came out.
pub fn complete(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let linker = call.handle(Kind::Linker)?;
    call.message.end()?;
    let memory = memory(call, linker)?;
    let mut linking = locked(&memory);
    let (mut image, mut length) = (std::ptr::null_mut(), 0_usize);
    // SAFETY: the linker is there; the driver writes an address and a length to memory of ours.
    let code = unsafe { (call.driver.cuLinkComplete)(real(linker), &raw mut image, &raw mut length) };
    if code != CUDA_SUCCESS || image.is_null() {
        length = 0;
    }
    linking.result = (image.expose_provenance(), length);
    put_logs(&mut call.answer, &linking);
    call.answer.plain(length as u64);
    Ok(code)
}

/// A part of what came out: the linker, and where the part begins.
pub fn read(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let linker = call.handle(Kind::Linker)?;
    let at: u64 = call.message.plain()?;
    call.message.end()?;
    let memory = memory(call, linker)?;
    let linking = locked(&memory);
    let (address, length) = linking.result;
    let left = usize::try_from(at).ok().and_then(|at| length.checked_sub(at));
    let Some(left) = left.filter(|_| address != 0) else {
        return Ok(CUDA_ERROR_INVALID_VALUE);
    };
    let first = std::ptr::with_exposed_provenance::<u8>(address).wrapping_add(length - left);
    // SAFETY: the driver said that so many bytes are there until the linker is destroyed, which waits for this call.
    let part = unsafe { std::slice::from_raw_parts(first, left.min(call.answer.left())) };
    call.answer.bytes(part);
    Ok(CUDA_SUCCESS)
}

/// Ends a linker.
pub fn destroy(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let linker = call.handle(Kind::Linker)?;
    call.message.end()?;
    let Some(id) = linker.id() else {
        return Ok(CUDA_ERROR_INVALID_HANDLE);
    };
    call.begin_end(id)?;
    // SAFETY: the linker is there, no other call uses it, and none finds it from now on.
    let code = unsafe { (call.driver.cuLinkDestroy)(real(linker)) };
    let mut tables = call.server.tables();
    match code {
        // Its memory goes after it.
        CUDA_SUCCESS => tables.remove(id),
        _ => tables.keep(id),
    }
    Ok(code)
}

fn real(linker: Used) -> CUlinkState {
    std::ptr::with_exposed_provenance_mut(linker.real as usize)
}

/// A linker's memory. The call has a use of the linker.
fn memory(call: &Call<'_>, linker: Used) -> Result<Shared, Stop> {
    let tables = call.server.tables();
    let memory = linker.id().and_then(|id| tables.linkers.get(&id));
    memory.cloned().ok_or(Stop::Code(CUDA_ERROR_INVALID_HANDLE))
}

fn locked(memory: &Mutex<Linking>) -> MutexGuard<'_, Linking> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts both logs into the answer.
fn put_logs(answer: &mut Writer<'_>, linking: &Linking) {
    for text in linking.texts() {
        answer.count(Some(text.len()));
        answer.bytes(text);
    }
}
