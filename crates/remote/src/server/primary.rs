//! The current context, and primary contexts: the program's references to each device's are counted, so that it gives back only its own.

use std::sync::Arc;

use divvy_abi::*;

use super::{Call, Stop, Tables};
use crate::handle::{Id, Kind, Word};

/// Makes a context the current one: its name, or null.
pub fn set_current(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let context = call.handle(Kind::Context)?;
    call.message.end()?;
    // SAFETY: the context is the driver's, or null.
    let code = unsafe { (call.driver.cuCtxSetCurrent)(Word::from_bits(context.real)) };
    if code == CUDA_SUCCESS {
        // The next call need not look for it. The call's only use is that of the context.
        *call.current = call.uses.last().map(Arc::downgrade);
    }
    Ok(code)
}

pub fn retain(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let device: CUdevice = call.message.plain()?;
    call.message.end()?;
    call.end_contexts();
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the driver writes one handle to memory of ours.
    let code = unsafe { (call.driver.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
    if code != CUDA_SUCCESS {
        return Ok(code);
    }
    let mut tables = call.server.tables();
    let real = context.addr() as u64;
    let Some(found) = tables.objects.found_live(Kind::Context, real, None) else {
        drop(tables);
        // SAFETY: the reference that this call took goes back.
        unsafe { (call.driver.cuDevicePrimaryCtxRelease_v2)(device) };
        return Ok(CUDA_ERROR_OUT_OF_MEMORY);
    };
    *tables.primary.entry(device).or_default() += 1;
    call.answer.plain(found);
    Ok(CUDA_SUCCESS)
}

pub fn release(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let device: CUdevice = call.message.plain()?;
    call.message.end()?;
    // From here to the end no other call counts references.
    call.end_contexts();
    let references = call.server.tables().primary.get(&device).copied().unwrap_or(0);
    if references == 0 {
        return Ok(CUDA_ERROR_INVALID_CONTEXT);
    }
    let context = (references == 1).then(|| context(call, device)).flatten();
    quiet(call, context)?;
    // SAFETY: the program has a reference, and it is given back.
    let code = unsafe { (call.driver.cuDevicePrimaryCtxRelease_v2)(device) };
    let mut tables = call.server.tables();
    if code == CUDA_SUCCESS {
        tables.primary.insert(device, references - 1);
    }
    end(&mut tables, context, code);
    Ok(code)
}

pub fn reset(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let device: CUdevice = call.message.plain()?;
    call.message.end()?;
    call.end_contexts();
    let context = context(call, device);
    quiet(call, context)?;
    // SAFETY: it takes a number.
    let code = unsafe { (call.driver.cuDevicePrimaryCtxReset_v2)(device) };
    end(&mut call.server.tables(), context, code);
    Ok(code)
}

/// Waits for the calls that use a context which this one ends, or anything in it.
fn quiet(call: &Call<'_>, context: Option<Id>) -> Result<(), Stop> {
    let Some(id) = context else { return Ok(()) };
    let uses = call.server.tables().begin_end(id);
    uses.ok_or(Stop::Code(CUDA_ERROR_INVALID_CONTEXT))?.wait(0);
    Ok(())
}

/// That call was made.
fn end(tables: &mut Tables, context: Option<Id>, code: CUresult) {
    match (context, code) {
        (Some(id), CUDA_SUCCESS) => tables.remove(id),
        (Some(id), _) => tables.keep(id),
        (None, _) => {}
    }
}

/// The name of a device's primary context, where it is there.
fn context(call: &Call<'_>, device: CUdevice) -> Option<Id> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes two numbers to memory of ours.
    unsafe { (call.driver.cuDevicePrimaryCtxGetState)(device, &raw mut flags, &raw mut active) };
    if active == 0 {
        return None;
    }
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the driver writes one handle to memory of ours; the reference is given back at once.
    let found = unsafe { (call.driver.cuDevicePrimaryCtxRetain)(&raw mut context, device) } == CUDA_SUCCESS;
    if found {
        // SAFETY: the reference that was just taken.
        unsafe { (call.driver.cuDevicePrimaryCtxRelease_v2)(device) };
    }
    let real = found.then_some(context.addr() as u64)?;
    call.server.tables().objects.id(Kind::Context, real)
}
