//! Functions of modules: those of a small module come with its load, so that none of them is asked for.
#![allow(non_snake_case)]

use core::ffi::CStr;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use divvy_abi::*;

use super::arguments::{put_string, write_name};
use super::parameters::Function;
use super::{client, thread};
use crate::fork::OfProcess;
use crate::handle::Word;
use crate::wire::by_hand::FUNCTION;
use crate::wire::{Malformed, Reader, Writer};

/// The functions of a module, by their names.
type Functions = HashMap<Vec<u8>, u64>;

/// What is told of modules, by their names.
static TOLD: OfProcess<RwLock<Option<HashMap<u64, Functions>>>> = OfProcess::new();

/// More modules than this are not remembered: those that were unloaded are among them.
const MOST_MODULES: usize = 1 << 10;

/// Takes the functions of a module from the answer to its load.
pub fn take_list(m: &mut Reader<'_>, module: u64) -> Result<(), Malformed> {
    let mut functions = Functions::new();
    // An answer without room for the last mark has none.
    while !m.rest().is_empty() && m.flag()? {
        let name = m.list(1)?.ok_or(Malformed)?.to_vec();
        let function: u64 = m.plain()?;
        remember(function, Function::take(m)?);
        functions.insert(name, function);
    }
    let mut told = TOLD.write().unwrap_or_else(PoisonError::into_inner);
    let told = told.get_or_insert_default();
    if told.len() >= MOST_MODULES {
        told.clear();
    }
    told.insert(module, functions);
    Ok(())
}

fn remember(name: u64, function: Function) {
    if let Some(client) = client() {
        client.functions.insert(name, Arc::new(function));
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuModuleGetFunction(
    hfunc: *mut CUfunction,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    const SYMBOL: Symbol = Symbol::cuModuleGetFunction;
    if hfunc.is_null() || name.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let put = |m: &mut Writer<'_>| {
        m.plain(hmod.bits());
        // SAFETY: the program vouches for its string.
        unsafe { put_string(m, name) };
    };
    let told = TOLD.read().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    let known = told
        .as_ref()
        .and_then(|told| told.get(&hmod.bits())?.get(text).copied());
    drop(told);
    if let Some(known) = known {
        // A module that is gone is told of by the next call that waits.
        return thread::submit(FUNCTION, SYMBOL, put, |_, _| {
            // SAFETY: the program vouches for its pointer.
            unsafe { write_name(hfunc, known) };
            Ok(())
        });
    }
    thread::call(FUNCTION, SYMBOL, put, |m, good| {
        if good {
            let function: u64 = m.plain()?;
            if m.flag()? {
                remember(function, Function::take(m)?);
            }
            // SAFETY: the program vouches for its pointer.
            unsafe { write_name(hfunc, function) };
        }
        Ok(())
    })
}
