//! Contexts: their cost, the cost of their heaps, and the memory that ends with them.
#![allow(non_snake_case)]

use divvy_abi::{
    CUcontext, CUctxCreateParams, CUdevResourceDesc, CUdevice, CUexecAffinityParam, CUgreenCtx, CUresult,
    guard,
};

use crate::account;
use crate::below::forward;
use crate::charges::CHARGES;
use crate::gate;

macro_rules! context_begins {
    ($($name:ident($($argument:ident: $of:ty),*);)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            out: *mut CUcontext,
            $($argument: $of,)*
            device: CUdevice,
        ) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came.
                let call = || unsafe { forward::$name(out, $($argument,)* device) };
                match account::of_device(device) {
                    // SAFETY: read only after the driver said that it filled it in.
                    Ok(Some(account)) if account::keeps_charges() => CHARGES.create_context(account, call, || unsafe { out.read() }),
                    Ok(_) => call(),
                    Err(code) => code,
                }
            })
        })*
    };
}

context_begins! {
    cuCtxCreate(flags: u32);
    cuCtxCreate_v2(flags: u32);
    cuCtxCreate_v3(affinity: *mut CUexecAffinityParam, count: i32, flags: u32);
    cuCtxCreate_v4(parameters: *mut CUctxCreateParams, flags: u32);
}

pub(super) unsafe extern "C-unwind" fn cuDevicePrimaryCtxRetain(
    out: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuDevicePrimaryCtxRetain(out, device) };
        // SAFETY: read only after the driver said that it filled it in.
        primary(device, call, || Some(unsafe { out.read() }))
    })
}

/// A green context stands on its device's primary context, which it activates; by itself it takes little.
pub(super) unsafe extern "C-unwind" fn cuGreenCtxCreate(
    out: *mut CUgreenCtx,
    resources: CUdevResourceDesc,
    device: CUdevice,
    flags: u32,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuGreenCtxCreate(out, resources, device, flags) };
        primary(device, call, || None)
    })
}

fn primary(
    device: CUdevice,
    call: impl FnOnce() -> CUresult,
    handle: impl FnOnce() -> Option<CUcontext>,
) -> CUresult {
    match account::of_device(device) {
        Ok(Some(account)) if account::keeps_charges() => {
            CHARGES.retain_primary(device, account, call, handle)
        }
        Ok(_) => call(),
        Err(code) => code,
    }
}

pub(super) unsafe extern "C-unwind" fn cuGreenCtxDestroy(context: CUgreenCtx) -> CUresult {
    guard(|| {
        // Its streams end with it. The driver does not tell by which of the two handles it knows them.
        let _leaving = gate::context_leaves(context as CUcontext);
        // SAFETY: the argument is handed on as it came.
        let result = unsafe { forward::cuGreenCtxDestroy(context) };
        if result.is_success() && account::keeps_charges() {
            gate::context_ended(context as CUcontext);
            for device in CHARGES.primaries() {
                if !is_active(device) {
                    primary_ended(device);
                }
            }
        }
        result
    })
}

pub(super) unsafe extern "C-unwind" fn cuCtxAttach(out: *mut CUcontext, flags: u32) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
        unsafe {
            let result = forward::cuCtxAttach(out, flags);
            if result.is_success() {
                CHARGES.context_attached(out.read());
            }
            result
        }
    })
}

macro_rules! context_ends {
    ($($name:ident by $how:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(context: CUcontext) -> CUresult {
            guard(|| {
                let _leaving = gate::context_leaves(context);
                // SAFETY: the argument is handed on as it came.
                let (result, ended) = CHARGES.$how(context, || unsafe { forward::$name(context) });
                if ended {
                    gate::context_ended(context);
                }
                result
            })
        })*
    };
}

context_ends! {
    cuCtxDestroy by destroy_context;
    cuCtxDestroy_v2 by destroy_context;
    cuCtxDetach by detach_context;
}

macro_rules! primary_ends {
    ($($name:ident $(and $also:ident)?;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(device: CUdevice) -> CUresult {
            guard(|| {
                let _leaving = CHARGES.primary(device).and_then(gate::context_leaves);
                // SAFETY: the argument is handed on as it came.
                let result = unsafe { forward::$name(device) };
                if result.is_success() && account::keeps_charges() {
                    $($also(device);)?
                    // Some libraries retain and release it in each call.
                    if !is_active(device) {
                        primary_ended(device);
                    }
                }
                result
            })
        })*
    };
}

primary_ends! {
    cuDevicePrimaryCtxRelease;
    cuDevicePrimaryCtxRelease_v2;
    cuDevicePrimaryCtxReset and reset;
    cuDevicePrimaryCtxReset_v2 and reset;
}

fn reset(device: CUdevice) {
    CHARGES.device_reset(device);
}

fn primary_ended(device: CUdevice) {
    if let Some(context) = CHARGES.primary_ended(device) {
        gate::context_ended(context);
    }
}

/// Whether the device's primary context is alive.
fn is_active(device: CUdevice) -> bool {
    let mut flags = 0;
    let mut active = 0;
    // SAFETY: both out-parameters are ours.
    let result = unsafe { forward::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    result.is_success() && active != 0
}
