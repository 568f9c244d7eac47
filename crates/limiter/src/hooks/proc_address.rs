//! cuGetProcAddress: the driver below resolves the name, and its result is mapped back to the exact variant.
//!
//! The variant that a name means depends on version and flags, and only the driver knows all rules of its release. Its
//! result is an address, and the addresses of its exports tell variants apart. Ours are substituted variant by variant.
//!
//! A variant that is newer than our table, of a function that the limiter has, would hand out memory past the limiter.
//! So inside a slice such a variant is not found, unless the slice's policy is best-effort, which counts it. The export
//! tables of cuGetExportTable pass unchanged.
#![allow(non_snake_case)]

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use divvy_abi::{
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CUDA_ERROR_NOT_FOUND, CUDA_VERSION, CUdriverProcAddressQueryResult,
    CUresult, Symbol, guard,
};
use divvy_ledger::{Bypass, Policy};

use super::{TABLE, is_hooked};
use crate::below::{self, forward};
use crate::tenant::{self, Tenant};
use crate::{environment, log};
use divvy_charges::locked;

pub(super) unsafe extern "C-unwind" fn cuGetProcAddress(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let result = unsafe { forward::cuGetProcAddress(name, out, version, flags) };
        // SAFETY: the program's arguments, after the driver has filled them in.
        unsafe { substitute(result, name, out, version, flags) }.unwrap_or(CUDA_ERROR_NOT_FOUND)
    })
}

pub(super) unsafe extern "C-unwind" fn cuGetProcAddress_v2(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let result = unsafe { forward::cuGetProcAddress_v2(name, out, version, flags, status) };
        // SAFETY: the program's arguments, after the driver has filled them in.
        let answer = unsafe { substitute(result, name, out, version, flags) };
        answer.unwrap_or_else(|Unlimited| {
            if !status.is_null() {
                // SAFETY: the program vouches for its out-parameter.
                unsafe { status.write(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) };
            }
            CUDA_ERROR_NOT_FOUND
        })
    })
}

/// The function would have bypassed the limiter, and is not handed out.
struct Unlimited;

/// Replaces the driver's function in `out` by ours where we have one.
///
/// # Safety
/// `out` is null or valid, `name` null or a C string, if `result` says success.
unsafe fn substitute(
    result: CUresult,
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Result<CUresult, Unlimited> {
    if !result.is_success() || out.is_null() || name.is_null() {
        return Ok(result);
    }
    // SAFETY: the driver filled it in; the caller's promise covers both.
    let (address, name) = unsafe { (out.read().cast_const(), CStr::from_ptr(name)) };
    if address.is_null() {
        return Ok(result);
    }
    match variant(address, name).or_else(|| by_rule(name, version, flags)) {
        Some(symbol) if is_hooked(symbol) => {
            let ours = divvy_abi::exported(symbol).unwrap_or(TABLE.address(symbol));
            // SAFETY: as above.
            unsafe { out.write(ours.cast_mut()) };
        }
        Some(symbol) => note_unhooked(symbol),
        None => {
            if unknown(name, version) {
                // SAFETY: as above.
                unsafe { out.write(core::ptr::null_mut()) };
                return Err(Unlimited);
            }
        }
    }
    Ok(result)
}

/// The variant by our own table, for a driver that hands out functions that it does not export. It does not apply to a
/// CUDA version above our table's, since a name may mean an unknown variant there.
#[cold]
fn by_rule(name: &CStr, version: i32, flags: u64) -> Option<Symbol> {
    if version > CUDA_VERSION as i32 {
        return None;
    }
    divvy_abi::lookup(name.to_str().ok()?, version, flags)
}

static UNKNOWN: AtomicU64 = AtomicU64::new(0);

/// How many times cuGetProcAddress met a function that is not in our table.
pub fn unknown_addresses() -> u64 {
    UNKNOWN.load(Ordering::Relaxed)
}

/// A function that is not in our table. Returns whether it is withheld.
#[cold]
fn unknown(name: &CStr, version: i32) -> bool {
    static NAMES: Mutex<Vec<Box<CStr>>> = Mutex::new(Vec::new());
    UNKNOWN.fetch_add(1, Ordering::Relaxed);
    let counts = Symbol::ALL
        .iter()
        .any(|symbol| symbol.public_name().as_bytes() == name.to_bytes() && is_hooked(*symbol));
    // If the slice cannot be joined, no such function is handed out either.
    let kept = counts
        && match tenant::join() {
            Ok(Tenant::Unlimited) => false,
            Ok(Tenant::Member(member)) => {
                let strict = member.first().policy() == Policy::Strict;
                if !strict {
                    member.first().slot().count(Bypass::UnknownEntryPoint);
                }
                strict
            }
            Err(_) => true,
        };
    let mut names = locked(&NAMES);
    if names.len() < 256 && !names.iter().any(|seen| seen.as_ref() == name) {
        names.push(name.into());
        let what = if kept {
            "kept back"
        } else {
            "handed out as the driver has it"
        };
        log::line(format_args!(
            "{name:?} for CUDA {version} is newer than our table: {what}"
        ));
    }
    kept
}

/// Logs each function that is handed out without one of ours in between, once.
fn note_unhooked(symbol: Symbol) {
    static NOTED: [AtomicBool; Symbol::COUNT] = [const { AtomicBool::new(false) }; Symbol::COUNT];
    if environment::logs_all() && !NOTED[symbol.index()].swap(true, Ordering::Relaxed) {
        log::line(format_args!("{symbol} is handed out as the driver has it"));
    }
}

/// The symbol that has this address in the driver below. If several share it, the one that `name` means.
fn variant(address: *const c_void, name: &CStr) -> Option<Symbol> {
    static BY_ADDRESS: OnceLock<Vec<(usize, Symbol)>> = OnceLock::new();
    let by_address = BY_ADDRESS.get_or_init(|| {
        let mut all: Vec<(usize, Symbol)> = Symbol::ALL
            .iter()
            .filter(|symbol| below::has(**symbol))
            .map(|symbol| (below::resolve(*symbol) as usize, *symbol))
            .collect();
        all.sort_unstable();
        all
    });
    let start = by_address.partition_point(|(found, _)| *found < address as usize);
    let same = by_address[start..]
        .iter()
        .take_while(|(found, _)| *found == address as usize)
        .map(|(_, symbol)| *symbol);
    let name = name.to_bytes();
    same.clone()
        .find(|symbol| symbol.public_name().as_bytes() == name)
        .or_else(|| same.clone().next())
}
