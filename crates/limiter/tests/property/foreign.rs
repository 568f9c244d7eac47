//! Opening memory that other processes have posted.

use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use divvy_abi::*;

use crate::PAGE;
use crate::emulated::{code, cu, get};
use crate::physical::import;
use crate::posts::{digit, mail, memory_file};
use crate::process::{OPENED, OPENED_EXTERNAL, OPENED_POINTERS, OPENED_POOLED};
use crate::thing::Thing;
use crate::worker::Worker;

impl Worker {
    /// Opens a posted allocation, if it is still there and there is headroom.
    pub fn foreign(&mut self) {
        let name = format!("post-{}", self.random.below(4));
        let posted = std::fs::read_to_string(mail(&name)).unwrap_or_default();
        let words: Vec<&str> = posted.split(' ').collect();
        if let ["pointer", digits] = words[..] {
            return self.open(digits);
        }
        if let ["pooled", process, number, digits] = words[..] {
            return self.open_pooled(process, number, digits);
        }
        let ["descriptor", process, number] = words[..] else {
            return;
        };
        let Some(file) = memory_file(process, number) else {
            return;
        };
        if self.random.below(3) == 0 {
            return self.external(file);
        }
        if let Ok(handle) = import(&file.into()) {
            let mapped = (self.random.below(2) == 0).then(|| {
                let address: CUdeviceptr = get!(cuMemAddressReserve(PAGE as usize, 0, 0, 0));
                cu!(cuMemMap(address, PAGE as usize, 0, handle, 0));
                address
            });
            self.things.push(Thing::Foreign(handle, mapped));
            OPENED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens a posted descriptor as external memory, which takes the descriptor over.
    pub fn external(&mut self, file: std::fs::File) {
        let bytes = file.metadata().expect("it is open").len();
        let number = file.into_raw_fd();
        let described = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1_handle { fd: number },
            size: PAGE.min(bytes),
            ..Default::default()
        };
        let mut memory = null_mut();
        if code!(cuImportExternalMemory(&raw mut memory, &raw const described)) != CUDA_SUCCESS {
            // SAFETY: refused, it is still ours.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            return;
        }
        let buffer = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
            size: 4096,
            ..Default::default()
        };
        let mapped: Vec<CUdeviceptr> = (0..self.random.below(3))
            .map(|_| get!(cuExternalMemoryGetMappedBuffer(memory, &raw const buffer)))
            .collect();
        let kept = mapped.is_empty() || self.random.below(2) == 0;
        if !kept {
            cu!(cuDestroyExternalMemory(memory));
        }
        self.things.push(Thing::External(mapped, kept.then_some(memory)));
        OPENED_EXTERNAL.fetch_add(1, Ordering::Relaxed);
    }

    /// Imports a posted pointer of a pool, which may be this process's own.
    pub fn open_pooled(&mut self, process: &str, number: &str, digits: &str) {
        let Some(name) = memory_file(process, number) else {
            return;
        };
        let (shared, kind) = (
            name.into_raw_fd() as isize as *mut c_void,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        );
        let mut pool = null_mut();
        if code!(cuMemPoolImportFromShareableHandle(&raw mut pool, shared, kind, 0)) != CUDA_SUCCESS {
            return;
        }
        let mut data = CUmemPoolPtrExportData {
            reserved: std::array::from_fn(|at| digit(digits, at)),
        };
        let mut pointer = 0;
        if code!(cuMemPoolImportPointer(&raw mut pointer, pool, &raw mut data)) == CUDA_SUCCESS {
            self.things.push(Thing::Joined(pointer));
            OPENED_POOLED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens a pointer that another process has posted, if that process still has it.
    pub fn open(&mut self, digits: &str) {
        let handle = CUipcMemHandle {
            reserved: std::array::from_fn(|at| digit(digits, at) as std::ffi::c_char),
        };
        let mut pointer = 0;
        let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        if code!(cuIpcOpenMemHandle_v2(&raw mut pointer, handle, flags)) == CUDA_SUCCESS {
            self.things.push(Thing::Opened(pointer));
            OPENED_POINTERS.fetch_add(1, Ordering::Relaxed);
        }
    }
}
