//! The parameters of kernels: where they lie, which the server tells once of each function, and how they are copied.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use divvy_abi::*;

use super::{client, thread};
use crate::wire::by_hand::LAYOUT;
use crate::wire::{Malformed, Reader, Writer};

/// All parameters of a kernel take no more bytes than this.
const MOST_BYTES: usize = 32_764;

/// What a launch of a function needs: where its parameters lie, and what it may ask for.
#[derive(Debug)]
pub struct Function {
    /// Offset and size of each parameter, in bytes.
    pub parameters: Vec<(u32, u32)>,
    /// Bytes of all parameters.
    bytes: usize,
    /// Blocks in each direction, threads in each direction, threads of a block, bytes of dynamic shared memory.
    limits: [u32; 8],
}

impl Function {
    /// Takes it from an answer. Parameters are told in order, and none lies within another: a launch fills room for each.
    pub fn take(m: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (mut parameters, mut limits) = (Vec::new(), [u32::MAX; 8]);
        let (pairs, _) = m.list(8)?.ok_or(Malformed)?.as_chunks::<8>();
        let mut end = 0;
        for pair in pairs {
            let [a, b, c, d, e, f, g, h] = *pair;
            let (offset, size) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
            if offset < end || u64::from(offset) + u64::from(size) > MOST_BYTES as u64 {
                return Err(Malformed);
            }
            end = offset + size;
            parameters.push((offset, size));
        }
        for limit in &mut limits {
            *limit = m.plain()?;
        }
        Ok(Self {
            bytes: end as usize,
            parameters,
            limits,
        })
    }

    /// Whether a launch is one that the device refuses, whatever else is so.
    pub fn refuses(&self, shape: [u32; 7]) -> bool {
        let [x, y, z, width, height, depth, shared] = shape;
        let sizes = [x, y, z, width, height, depth];
        let threads = u64::from(width) * u64::from(height) * u64::from(depth);
        let outside = sizes
            .iter()
            .zip(self.limits)
            .any(|(size, most)| *size == 0 || *size > most);
        outside || threads > u64::from(self.limits[6]) || shared > self.limits[7]
    }
}

/// The functions that this process has asked for, by their names.
#[derive(Default)]
pub struct Known {
    functions: RwLock<HashMap<u64, Arc<Function>>>,
    /// Counts how often all were forgotten.
    times: AtomicU64,
}

/// More functions than this are not remembered: those of modules that were unloaded are among them.
const MOST_FUNCTIONS: usize = 1 << 14;

impl Known {
    /// Remembers what the server told of a function.
    pub fn insert(&self, name: u64, function: Arc<Function>) {
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        if functions.len() >= MOST_FUNCTIONS {
            functions.clear();
        }
        functions.insert(name, function);
    }

    /// Forgets all: what a launch may ask for has changed.
    pub fn forget(&self) {
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        functions.clear();
        // Behind the change, so that a thread which sees the new number finds no function of before.
        self.times.fetch_add(1, Ordering::Release);
    }
}

/// How many functions a thread remembers by itself: those of a loop.
const RECENT: usize = 16;

/// A function that this thread has launched, its name, and how often all had been forgotten before it was asked for.
type Recent = Option<(u64, u64, Arc<Function>)>;

thread_local! {
    static RECENTLY: RefCell<[Recent; RECENT]> = const { RefCell::new([const { None }; RECENT]) };
}

/// Runs `body` with what a launch of a function needs. The server is asked for it once.
pub fn with<R>(
    symbol: Symbol,
    function: u64,
    body: impl FnOnce(&Function) -> Result<R, CUresult>,
) -> Result<R, CUresult> {
    let known = &client().ok_or(CUDA_ERROR_DEVICE_UNAVAILABLE)?.functions;
    let times = known.times.load(Ordering::Acquire);
    // Names are numbered one after the other.
    let place = function as usize % RECENT;
    let mut body = Some(body);
    let mut run = |function: &Function| body.take().map(|body| body(function));
    let done = RECENTLY.try_with(|recently| {
        let recently = recently.try_borrow().ok()?;
        let (name, asked, known) = recently[place].as_ref()?;
        ((*name, *asked) == (function, times)).then(|| run(known))?
    });
    if let Ok(Some(outcome)) = done {
        return outcome;
    }
    let found = find(known, symbol, function)?;
    let _not_while_the_thread_ends = RECENTLY.try_with(|recently| {
        if let Ok(mut recently) = recently.try_borrow_mut() {
            recently[place] = Some((function, times, Arc::clone(&found)));
        }
    });
    run(&found).unwrap_or(Err(CUDA_ERROR_UNKNOWN))
}

fn find(known: &Known, symbol: Symbol, function: u64) -> Result<Arc<Function>, CUresult> {
    let functions = known.functions.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = functions.get(&function) {
        return Ok(Arc::clone(found));
    }
    drop(functions);
    let asked = Arc::new(ask(symbol, function)?);
    known.insert(function, Arc::clone(&asked));
    Ok(asked)
}

/// Asks the server.
fn ask(symbol: Symbol, function: u64) -> Result<Function, CUresult> {
    let mut came = None;
    let code = thread::call(
        LAYOUT,
        symbol,
        |m| m.plain(function),
        |m, good| {
            if good {
                came = Some(Function::take(m)?);
            }
            Ok(())
        },
    );
    came.ok_or(code)
}

/// The parameters of one launch, in the program's memory, in either of the two forms that CUDA has for them.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    function: &'a Function,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    /// A pointer to each.
    Each(*mut *mut c_void),
    /// All of them, as the kernel has them.
    Packed(*const u8),
}

impl<'a> Values<'a> {
    /// What a program gave for the parameters of a function.
    ///
    /// # Safety
    /// `params`, or else `extra`, describes the function's parameters as cuLaunchKernel requires, for as long as the
    /// value is used.
    pub unsafe fn of(
        function: &'a Function,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Self, CUresult> {
        let form = match (params.is_null(), extra.is_null()) {
            (true, true) if function.parameters.is_empty() => Form::Each(params),
            // Neither form, or both.
            (true, true) | (false, false) => return Err(CUDA_ERROR_INVALID_VALUE),
            (false, true) => {
                // SAFETY: the list has an entry for each parameter.
                let any_null =
                    (0..function.parameters.len()).any(|at| unsafe { params.add(at).read() }.is_null());
                if any_null {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                Form::Each(params)
            }
            (true, false) => {
                // SAFETY: promised by the caller.
                let (buffer, size) = unsafe { packed(extra) }?;
                if size < function.bytes || buffer.is_null() {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                Form::Packed(buffer)
            }
        };
        Ok(Self { function, form })
    }

    /// Writes them as the kernel has them. Bytes between them are zeros.
    pub fn put(&self, m: &mut Writer<'_>) {
        let Some(into) = m.room(self.function.bytes) else {
            return;
        };
        let each = match self.form {
            Form::Packed(buffer) => {
                // SAFETY: the buffer is as long as the list says, which is enough.
                unsafe { std::ptr::copy_nonoverlapping(buffer, into.as_mut_ptr(), into.len()) };
                return;
            }
            Form::Each(each) => each,
        };
        into.fill(0);
        for (at, (offset, size)) in self.function.parameters.iter().enumerate() {
            let into = &mut into[*offset as usize..][..*size as usize];
            // SAFETY: each entry points to a value of the parameter's size, and the slice has as many bytes. The
            // program's memory is not the message's.
            unsafe {
                let value = each.add(at).read();
                std::ptr::copy_nonoverlapping(value.cast(), into.as_mut_ptr(), into.len());
            }
        }
    }
}

/// The buffer of an `extra` list.
///
/// # Safety
/// `extra` is a list of keys and values that ends with CU_LAUNCH_PARAM_END.
unsafe fn packed(mut extra: *mut *mut c_void) -> Result<(*const u8, usize), CUresult> {
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    loop {
        // SAFETY: the list goes on until its end is read.
        let key = unsafe { extra.read() };
        if key == CU_LAUNCH_PARAM_END {
            return Ok((buffer, size));
        }
        // SAFETY: a key other than the end is followed by its value.
        let value = unsafe { extra.add(1).read() };
        match key {
            CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast_const().cast(),
            // SAFETY: this key's value points to the size.
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => size = unsafe { value.cast::<usize>().read() },
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        // SAFETY: the value that was read was inside the list.
        extra = unsafe { extra.add(2) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(parameters: &[(u32, u32)]) -> Result<Function, Malformed> {
        let mut message = [0; 256];
        let mut m = Writer::new(&mut message);
        m.count(Some(parameters.len()));
        for (offset, size) in parameters {
            m.plain(*offset);
            m.plain(*size);
        }
        for _ in 0..8 {
            m.plain(1_u32);
        }
        let length = m.finish().unwrap();
        Function::take(&mut Reader::new(&message[..length]))
    }

    #[test]
    fn a_forged_layout_is_none() {
        let good = taken(&[(0, 4), (8, 8), (16, 0), (16, 4)]).unwrap();
        assert_eq!(
            (good.bytes, good.parameters),
            (20, vec![(0, 4), (8, 8), (16, 0), (16, 4)])
        );
        let most = MOST_BYTES as u32;
        assert_eq!(taken(&[(0, most)]).unwrap().bytes, MOST_BYTES);
        for wrong in [
            &[(0, most + 1)][..],
            &[(8, 8), (0, 8)],
            &[(0, 8), (4, 8)],
            &[(0, 8), (0, 8)],
            &[(4, u32::MAX)],
        ] {
            assert!(taken(wrong).is_err(), "{wrong:?}");
        }
    }
}
