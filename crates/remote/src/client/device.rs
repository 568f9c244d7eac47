//! A device's attributes: all come in one answer, and stay.
#![allow(non_snake_case)]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use divvy_abi::*;

use super::{start, thread};
use crate::fork::OfProcess;
use crate::wire::by_hand::DEVICE_ATTRIBUTES;
use crate::wire::{Malformed, Reader};

pub type Attributes = Arc<BTreeMap<u32, i32>>;

static KNOWN: OfProcess<RwLock<Option<HashMap<CUdevice, Attributes>>>> = OfProcess::new();

fn attributes(device: CUdevice) -> Result<Attributes, CUresult> {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    let worker = start::to_worker(device);
    if let Some(attributes) = known.as_ref().and_then(|known| known.get(&worker)) {
        return Ok(Arc::clone(attributes));
    }
    drop(known);
    let mut came = None;
    let code = thread::call(
        DEVICE_ATTRIBUTES,
        Symbol::cuDeviceGetAttribute,
        |m| m.plain(start::to_worker(device)),
        |m, good| {
            if good {
                came = Some(take(start::to_worker(device), m)?);
            }
            Ok(())
        },
    );
    came.ok_or(code)
}

/// Takes the attributes of a device of the worker's from an answer: number and value of each.
pub fn take(device: CUdevice, m: &mut Reader<'_>) -> Result<Attributes, Malformed> {
    let (pairs, _) = m.list(8)?.ok_or(Malformed)?.as_chunks::<8>();
    let pair = |[a, b, c, d, e, f, g, h]: &[u8; 8]| {
        (
            u32::from_le_bytes([*a, *b, *c, *d]),
            i32::from_le_bytes([*e, *f, *g, *h]),
        )
    };
    let attributes: Attributes = Arc::new(pairs.iter().map(pair).collect());
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known
        .get_or_insert_default()
        .insert(device, Arc::clone(&attributes));
    Ok(attributes)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceGetAttribute(
    pi: *mut i32,
    attrib: CUdevice_attribute,
    dev: CUdevice,
) -> CUresult {
    if let Err(code) = start::require_here() {
        return code;
    }
    if pi.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let value = attributes(dev).and_then(|all| all.get(&attrib.0).copied().ok_or(CUDA_ERROR_INVALID_VALUE));
    match value {
        Ok(value) => {
            // SAFETY: the program vouches for its pointer, which is not null.
            unsafe { pi.write(value) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}
