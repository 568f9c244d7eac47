//! Physical memory of the virtual memory interface, and its references.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use divvy_abi::*;

use crate::PAGE;
use crate::emulated::{code, cu, get};
use crate::thing::Thing;
use crate::worker::Worker;

impl Worker {
    /// Physical memory, and its references: handles, mappings, imports of our own export, a descriptor.
    pub fn block(&mut self, bytes: u64) {
        let mut properties = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let mut handle = 0;
        let result = code!(cuMemCreate(
            &raw mut handle,
            bytes as usize,
            &raw const properties,
            0
        ));
        if result != CUDA_SUCCESS {
            return assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mut handles = vec![handle];
        let (mut descriptor, mut counted) = (None, bytes);
        if self.random.below(2) == 0 {
            let mut number = -1i32;
            let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            cu!(cuMemExportToShareableHandle(
                (&raw mut number).cast(),
                handle,
                kind,
                0
            ));
            // SAFETY: the driver has just made it, for us to close.
            let exported = unsafe { OwnedFd::from_raw_fd(number) };
            match self.random.below(3) {
                // For a moment there is only the descriptor: the first process that imports it is charged.
                0 => {
                    counted = 0;
                    cu!(cuMemRelease(handle));
                    match import(&exported) {
                        Ok(again) => handles[0] = again,
                        Err(code) => return assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY),
                    }
                    handle = handles[0];
                }
                1 => handles.push(import(&exported).expect("we have it")),
                _ => {
                    let process = std::process::id();
                    self.post(&format!("descriptor {process} {number}"));
                    descriptor = Some(exported);
                }
            }
        }
        let mut mappings = Vec::new();
        for _ in 0..self.random.below(3) {
            let part = match self.random.below(2) {
                0 => bytes as usize,
                _ => PAGE as usize,
            };
            let address: CUdeviceptr = get!(cuMemAddressReserve(part, 0, 0, 0));
            cu!(cuMemMap(address, part, 0, handle, 0));
            mappings.push((address, part));
        }
        if let Some((address, _)) = mappings.first()
            && self.random.below(2) == 0
        {
            handles.push(get!(cuMemRetainAllocationHandle(*address as *mut c_void)));
        }
        self.got(CUDA_SUCCESS, counted, || {
            Thing::Block(handles, mappings, descriptor, counted)
        });
    }
}

/// Imports a descriptor, which stays open.
pub fn import(descriptor: &OwnedFd) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handle = 0;
    let number = descriptor.as_raw_fd() as isize as *mut c_void;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    code!(cuMemImportFromShareableHandle(&raw mut handle, number, kind)).ok()?;
    Ok(handle)
}
