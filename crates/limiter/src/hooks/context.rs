//! Contexts: what they cost, what their heaps cost, and what goes when they end.
//!
//! Which allocations go with a context is the driver's knowledge. Before a context is destroyed, each pointer that we hold a
//! charge for is asked about: afterwards its address may be another thread's allocation, import or mapping. Where it
//! is not known before whether a context ends, each is asked about after it, and the charge of those that the driver no
//! longer knows goes back. That costs nothing at allocation, and gets shared and pooled memory right, which outlives a
//! context.
#![allow(non_snake_case)]

use core::mem::MaybeUninit;

use divvy_abi::{
    CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUDA_ERROR_INVALID_VALUE, CUcontext,
    CUctxCreateParams, CUdevResourceDesc, CUdevice, CUdeviceptr, CUexecAffinityParam, CUgreenCtx, CUresult,
    guard,
};

use crate::account;
use crate::below::{ask, forward};
use crate::books::parting::Parting;
use crate::books::{self, CHARGED, contexts, imports, is_pool, pools, returned};
use crate::gate;
use crate::map::Charge;

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
                    Ok(Some(account)) if account::keeps_books() => contexts::created(account, call, || unsafe { out.read() }),
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

/// A green context stands on its device's primary context, which it brings to life; of its own it takes little.
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
        Ok(Some(account)) if account::keeps_books() => {
            contexts::primary_retained(device, account, call, handle)
        }
        Ok(_) => call(),
        Err(code) => code,
    }
}

pub(super) unsafe extern "C-unwind" fn cuGreenCtxDestroy(context: CUgreenCtx) -> CUresult {
    guard(|| {
        // Its streams go with it; by which of the two handles the driver knows them, it does not say.
        let _leaving = gate::context_leaves(context as CUcontext);
        // SAFETY: the argument is handed on as it came.
        let result = unsafe { forward::cuGreenCtxDestroy(context) };
        if result.is_success() && account::keeps_books() {
            gate::context_ended(context as CUcontext);
            for device in contexts::primaries() {
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
            if result.is_success() && account::keeps_books() {
                contexts::attached(out.read());
            }
            result
        }
    })
}

macro_rules! context_ends {
    ($($name:ident $(with $parting:ident)? $(if $last:expr)?;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(context: CUcontext) -> CUresult {
            guard(|| {
                let _leaving = gate::context_leaves(context);
                let leaving: Vec<Leaving> = context_ends!(@ context $($parting)?);
                // SAFETY: the argument is handed on as it came.
                let result = unsafe { forward::$name(context) };
                let ended = result.is_success() && account::keeps_books() $(&& $last(context))?;
                leaving.into_iter().for_each(if ended { Leaving::done } else { Leaving::refused });
                if ended {
                    books::context_ended(context, is_gone);
                    return_charges_of_the_gone();
                }
                result
            })
        })*
    };
    (@ $context:ident) => { Vec::new() };
    (@ $context:ident $parting:ident) => { $parting($context) };
}

context_ends! {
    cuCtxDestroy with leaving_with;
    cuCtxDestroy_v2 with leaving_with;
    cuCtxDetach with leaving_with_the_last if contexts::detached;
}

/// An allocation that will go with its context.
enum Leaving {
    /// Others may have it open, or it lies in a page with such.
    Beyond(Box<Parting>),
    /// It is this process's alone.
    Own(CUdeviceptr, Charge),
}

impl Leaving {
    fn new(pointer: CUdeviceptr, charge: Charge) -> Option<Self> {
        let charge = CHARGED.take_if(pointer, |present| present == charge)?;
        let parting = Parting::begin(pointer, Some(charge));
        Some(match parting {
            Some(parting) => Self::Beyond(Box::new(parting)),
            None => Self::Own(pointer, charge),
        })
    }

    fn done(self) {
        match self {
            Self::Beyond(parting) => parting.done(),
            Self::Own(pointer, charge) => returned(pointer, charge),
        }
    }

    fn refused(self) {
        match self {
            Self::Beyond(parting) => parting.refused(),
            Self::Own(pointer, charge) => {
                let _room_was_there = CHARGED.insert(pointer, charge.bytes, charge.payer);
            }
        }
    }
}

/// What will go with a context: taken out of the books before, since the driver may hand the addresses out again before they
/// are looked at. That nobody frees any of it meanwhile is the program's promise.
fn leaving_with(context: CUcontext) -> Vec<Leaving> {
    if !account::keeps_books() {
        return Vec::new();
    }
    let _quiet = ask::Quiet::begin();
    let of_context: Vec<_> = CHARGED
        .snapshot()
        .into_iter()
        // What is of a pool outlives every context.
        .filter(|(pointer, charge)| !is_pool(charge.payer) && context_of(*pointer) == Some(context as usize))
        .collect();
    // Those that others may have open first: who shares a page with them is known only then.
    let (exported, rest): (Vec<_>, Vec<_>) = of_context
        .into_iter()
        .partition(|(pointer, _)| imports::is_exported(*pointer));
    exported
        .into_iter()
        .chain(rest)
        .filter_map(|(pointer, charge)| Leaving::new(pointer, charge))
        .collect()
}

/// The same where a use of the context is taken away.
fn leaving_with_the_last(context: CUcontext) -> Vec<Leaving> {
    match contexts::has_one_use(context) {
        true => leaving_with(context),
        false => Vec::new(),
    }
}

/// The context of an allocation, as far as the driver tells.
fn context_of(pointer: CUdeviceptr) -> Option<usize> {
    let mut context = MaybeUninit::<usize>::zeroed();
    // SAFETY: the attribute is a pointer wide and `context` has room; the driver checks the pointer.
    let answer = unsafe {
        forward::cuPointerGetAttribute(context.as_mut_ptr().cast(), CU_POINTER_ATTRIBUTE_CONTEXT, pointer)
    };
    // SAFETY: zeroed, or filled in.
    answer.is_success().then(|| unsafe { context.assume_init() })
}

macro_rules! primary_ends {
    ($($name:ident $(and $also:ident)?;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(device: CUdevice) -> CUresult {
            guard(|| {
                let _leaving = contexts::primary(device).and_then(gate::context_leaves);
                // SAFETY: the argument is handed on as it came.
                let result = unsafe { forward::$name(device) };
                if result.is_success() && account::keeps_books() {
                    $($also(device);)?
                    // Some libraries retain and release it at every turn.
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

/// A reset may take a device's pools with it, or not: none of them is asked before the program names it again.
fn reset(device: CUdevice) {
    return_charges_of_the_gone();
    if let Ok(Some(account)) = account::of_device(device) {
        pools::reset(account);
    }
}

fn primary_ended(device: CUdevice) {
    if let Some(context) = contexts::primary(device) {
        books::context_ended(context, is_gone);
    }
    return_charges_of_the_gone();
}

/// Whether somebody still holds the device's primary context.
fn is_active(device: CUdevice) -> bool {
    let mut flags = 0;
    let mut active = 0;
    // SAFETY: both out-parameters are ours.
    let result = unsafe { forward::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    result.is_success() && active != 0
}

fn return_charges_of_the_gone() {
    let _quiet = ask::Quiet::begin();
    for (pointer, charge) in CHARGED.snapshot() {
        if is_gone(pointer)
            && let Some(charge) = CHARGED.take_if(pointer, |present| present == charge)
        {
            // Others may have it open still, as after a free.
            match Parting::begin(pointer, Some(charge)) {
                Some(parting) => parting.done(),
                None => returned(pointer, charge),
            }
        }
    }
}

/// Whether the driver knows no such pointer. Any other answer leaves it open whether the memory is gone.
fn is_gone(pointer: CUdeviceptr) -> bool {
    let mut kind = MaybeUninit::<u64>::zeroed();
    // SAFETY: the attribute is 4 bytes wide and `kind` has room; the driver checks the pointer.
    let answer = unsafe {
        forward::cuPointerGetAttribute(
            kind.as_mut_ptr().cast(),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            pointer,
        )
    };
    answer == CUDA_ERROR_INVALID_VALUE
}
