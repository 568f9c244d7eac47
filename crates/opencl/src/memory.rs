//! Charges of memory, each of which ends with its object.
//!
//! A memory object belongs to a context, and a driver puts a copy on each device of the context that uses it. So it is
//! charged to each of them. It ends when the driver calls its destructor callback: the last reference is gone by then,
//! those of commands and of sub-buffers included.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUresult};

use crate::below;
use crate::cl::*;
use crate::devices::{self, Charged};
use crate::driver::{self, locked};

/// Memory that is charged; empty where nothing is limited.
#[derive(Debug, Default)]
pub(crate) struct Charge(Vec<u64>);

impl Charge {
    /// Gives it back.
    pub fn end(self) {
        self.0.into_iter().for_each(driver::release);
    }

    fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

/// Makes an object of `bytes` on these devices by `make`, which tells the object or why there is none.
///
/// # Errors
/// The driver's, or `CL_MEM_OBJECT_ALLOCATION_FAILURE` beyond the slice's limit.
///
/// # Safety
/// The devices are the driver's.
pub(crate) unsafe fn charged<T>(
    devices: &[cl_device_id],
    bytes: u64,
    mut make: impl FnMut() -> Result<T, cl_int>,
) -> Result<(T, Charge), cl_int> {
    let mut ordinals = Vec::new();
    for device in devices {
        // SAFETY: the caller's promise.
        match unsafe { devices::charged(*device) } {
            Charged::Account(ordinal) if !ordinals.contains(&ordinal) => ordinals.push(ordinal),
            Charged::Account(_) | Charged::Free => {}
            Charged::Refused => return Err(CL_OUT_OF_RESOURCES),
        }
    }
    if ordinals.is_empty() || bytes == 0 {
        return Ok((make()?, Charge::default()));
    }
    let mut made = None;
    let mut error = CL_SUCCESS;
    let mut attempt = || match make() {
        Ok(object) => {
            made = Some(object);
            CUDA_SUCCESS
        }
        Err(why) => {
            error = why;
            code(why)
        }
    };
    let mut charge = Charge::default();
    let result = take(&ordinals, bytes, &mut charge, &mut attempt);
    match (result, made) {
        (CUDA_SUCCESS, Some(object)) => Ok((object, charge)),
        _ => {
            charge.end();
            Err(match (error, result) {
                (CL_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY) => CL_MEM_OBJECT_ALLOCATION_FAILURE,
                (CL_SUCCESS, _) => CL_OUT_OF_RESOURCES,
                (error, _) => error,
            })
        }
    }
}

/// Takes the bytes from the accounts one within the other, and makes the object in the innermost.
fn take(ordinals: &[i32], bytes: u64, charge: &mut Charge, attempt: driver::Call<'_>) -> CUresult {
    let Some((first, rest)) = ordinals.split_first() else {
        return attempt();
    };
    let bytes_of_call = usize::try_from(bytes).unwrap_or(usize::MAX);
    let before = charge.0.len();
    let taken = driver::take(*first, bytes_of_call, &mut || {
        let result = take(rest, bytes, charge, attempt);
        if result != CUDA_SUCCESS {
            charge.0.drain(before..).for_each(driver::release);
        }
        result
    });
    match taken {
        Ok(handle) => {
            charge.0.push(handle);
            CUDA_SUCCESS
        }
        Err(code) => {
            charge.0.drain(before..).for_each(driver::release);
            code
        }
    }
}

/// The limiter's code of a driver's refusal: it asks again where memory was short and may just have come back.
fn code(error: cl_int) -> CUresult {
    match error {
        CL_MEM_OBJECT_ALLOCATION_FAILURE | CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY => {
            CUDA_ERROR_OUT_OF_MEMORY
        }
        _ => CUDA_ERROR_UNKNOWN,
    }
}

/// Makes a memory object of `bytes` in a context by `make`, which has a place for the driver's error. Its charge ends with
/// it.
///
/// # Safety
/// `error` is null or valid for writing; the context is the driver's or one that the driver refuses.
pub(crate) unsafe fn object(
    context: cl_context,
    bytes: u64,
    error: *mut cl_int,
    mut make: impl FnMut(*mut cl_int) -> cl_mem,
) -> cl_mem {
    // SAFETY: the caller's promise.
    let devices = unsafe { below::devices_of(context) };
    if devices.is_empty() {
        // The driver says what is wrong with it.
        return make(error);
    }
    let attempt = || {
        let mut why = CL_SUCCESS;
        let object = make(&raw mut why);
        match (object.is_null(), why) {
            (false, _) => Ok(object),
            (true, CL_SUCCESS) => Err(CL_OUT_OF_RESOURCES),
            (true, why) => Err(why),
        }
    };
    // SAFETY: the driver named them.
    let made = unsafe { charged(&devices, bytes, attempt) }.and_then(|(object, charge)| {
        // SAFETY: the driver has just made it.
        unsafe { end_with(object, charge) }.map(|()| object)
    });
    let (object, why) = match made {
        Ok(object) => (object, CL_SUCCESS),
        Err(why) => (core::ptr::null_mut(), why),
    };
    if !error.is_null() {
        // SAFETY: the caller's promise.
        unsafe { error.write(why) };
    }
    object
}

unsafe extern "C" fn destroyed(_object: cl_mem, data: *mut c_void) {
    crate::hooks::guarded((), || {
        // SAFETY: `end_with` made it for this one call.
        unsafe { Box::from_raw(data.cast::<Charge>()) }.end();
    });
}

/// Has a charge end with its object. An object whose end the driver would not tell is not granted.
///
/// # Safety
/// The object is new, and the program does not know it.
unsafe fn end_with(object: cl_mem, charge: Charge) -> Result<(), cl_int> {
    if charge.is_nothing() {
        return Ok(());
    }
    let data = Box::into_raw(Box::new(charge));
    // SAFETY: the caller's promise, and a callback that takes the data once.
    unsafe {
        if below::clSetMemObjectDestructorCallback(object, Some(destroyed), data.cast()) == CL_SUCCESS {
            return Ok(());
        }
        below::clReleaseMemObject(object);
        Box::from_raw(data).end();
    }
    Err(CL_OUT_OF_HOST_MEMORY)
}

/// Memory that is known by its address.
#[derive(Debug)]
struct Placed {
    charge: Charge,
    /// The context that it was made in. A driver frees it for no other.
    context: usize,
}

/// By address.
static PLACED: OnceLock<Mutex<HashMap<usize, Placed>>> = OnceLock::new();

fn placed() -> &'static Mutex<HashMap<usize, Placed>> {
    PLACED.get_or_init(Mutex::default)
}

/// Keeps the charge of memory at an address.
pub(crate) fn keep(context: cl_context, address: *mut c_void, charge: Charge) {
    if charge.is_nothing() {
        return;
    }
    let context = context as usize;
    let before = locked(placed()).insert(address as usize, Placed { charge, context });
    // The driver hands out no address that is in use: the memory before was freed without the layer seeing it.
    if let Some(before) = before {
        before.charge.end();
    }
}

/// Takes the charge of memory at an address out of the table, if it was made in this context.
pub(crate) fn taken(context: cl_context, address: *mut c_void) -> Option<Charge> {
    if !driver::is_counted() {
        return None;
    }
    let mut all = locked(placed());
    let is_its_own = all.get(&(address as usize))?.context == context as usize;
    is_its_own
        .then(|| all.remove(&(address as usize)))?
        .map(|found| found.charge)
}

/// Memory that a command is going to free: nothing else at the same address is meant later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    address: usize,
    /// The first of its charge's handles: no two are alike.
    handle: u64,
}

/// The name of the memory at an address, if it was made in this context and is charged.
pub(crate) fn named(context: cl_context, address: *mut c_void) -> Option<Named> {
    if !driver::is_counted() {
        return None;
    }
    let all = locked(placed());
    let found = all.get(&(address as usize))?;
    (found.context == context as usize).then_some(Named {
        address: address as usize,
        handle: *found.charge.0.first()?,
    })
}

/// The memory of this name was freed: its charge ends, if it has not.
pub(crate) fn freed(name: Named) {
    let found = {
        let mut all = locked(placed());
        match all.get(&name.address) {
            Some(found) if found.charge.0.first() == Some(&name.handle) => all.remove(&name.address),
            _ => None,
        }
    };
    if let Some(found) = found {
        found.charge.end();
    }
}

/// A charge for tests, and whether it is kept.
#[cfg(test)]
pub(crate) fn keep_for_test(address: usize, handle: u64) -> Named {
    keep(
        core::ptr::null_mut(),
        address as *mut c_void,
        Charge(vec![handle]),
    );
    Named { address, handle }
}

#[cfg(test)]
pub(crate) fn is_kept(name: Named) -> bool {
    let all = locked(placed());
    all.get(&name.address)
        .is_some_and(|found| found.charge.0 == [name.handle])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_later_ends_its_own_charge_and_no_newer_one() {
        let first = keep_for_test(0x1000, 7);
        freed(Named { handle: 6, ..first });
        assert!(is_kept(first), "a name of another charge");
        freed(first);
        assert!(!is_kept(first));
        // The address was handed out again before the driver told of the command that freed it.
        let second = keep_for_test(0x1000, 8);
        freed(first);
        assert!(is_kept(second));
        freed(second);
    }
}
