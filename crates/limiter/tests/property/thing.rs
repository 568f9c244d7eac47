//! The kinds of things that a thread has allocated or opened, and how each is released.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use divvy_abi::*;

use crate::PAGE;
use crate::emulated::cu;
use crate::process::{LIVE, MANAGED};
use crate::worker::Worker;

/// A thing that a thread has allocated.
pub enum Thing {
    Pointer(CUdeviceptr, u64),
    Managed(CUdeviceptr, u64),
    /// Handle references, mappings and a descriptor that others may import.
    Block(
        Vec<CUmemGenericAllocationHandle>,
        Vec<(CUdeviceptr, usize)>,
        Option<OwnedFd>,
        u64,
    ),
    /// Another thread's or process's physical memory, and a mapping of it.
    Foreign(CUmemGenericAllocationHandle, Option<CUdeviceptr>),
    /// Another process's memory, opened by its IPC handle.
    Opened(CUdeviceptr),
    /// Memory of a pool of any process.
    Joined(CUdeviceptr),
    /// A descriptor's memory, as external memory: its mapped parts, and its handle unless that was released.
    External(Vec<CUdeviceptr>, Option<CUexternalMemory>),
    Module(CUmodule, u64),
    Library(CUlibrary, u64),
    Array(CUarray, u64),
    Mipmap(CUmipmappedArray, u64),
}

pub fn paged(bytes: u64) -> u64 {
    if bytes > PAGE / 2 {
        bytes.next_multiple_of(PAGE)
    } else {
        bytes.next_multiple_of(512)
    }
}

impl Worker {
    pub fn free(&mut self, thing: Thing, stream: CUstream) {
        if let Thing::Pointer(_, bytes)
        | Thing::Managed(_, bytes)
        | Thing::Block(_, _, _, bytes)
        | Thing::Module(_, bytes)
        | Thing::Library(_, bytes)
        | Thing::Array(_, bytes)
        | Thing::Mipmap(_, bytes) = thing
        {
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
        }
        match thing {
            Thing::Pointer(pointer, _) => match self.random.below(3) {
                0 => cu!(cuMemFree_v2(pointer)),
                1 => cu!(cuMemFreeAsync_ptsz(pointer, stream)),
                _ => cu!(cuMemFreeAsync(pointer, stream)),
            },
            Thing::Managed(pointer, bytes) => {
                cu!(cuMemFree_v2(pointer));
                MANAGED.fetch_sub(paged(bytes), Ordering::Relaxed);
            }
            Thing::Foreign(handle, mapped) => {
                cu!(cuMemRelease(handle));
                if let Some(address) = mapped {
                    cu!(cuMemUnmap(address, PAGE as usize));
                    cu!(cuMemAddressFree(address, PAGE as usize));
                }
            }
            Thing::Block(handles, mappings, _descriptor, _) => {
                let released = self.random.below(2) == 0;
                if released {
                    handles.iter().for_each(|handle| cu!(cuMemRelease(*handle)));
                }
                for (address, part) in mappings {
                    cu!(cuMemUnmap(address, part));
                    cu!(cuMemAddressFree(address, part));
                }
                if !released {
                    handles.iter().for_each(|handle| cu!(cuMemRelease(*handle)));
                }
            }
            Thing::Opened(pointer) => cu!(cuIpcCloseMemHandle(pointer)),
            Thing::Joined(pointer) => match self.random.below(2) {
                0 => cu!(cuMemFree_v2(pointer)),
                _ => cu!(cuMemFreeAsync(pointer, stream)),
            },
            Thing::External(mapped, memory) => {
                mapped.iter().for_each(|pointer| cu!(cuMemFree_v2(*pointer)));
                memory
                    .iter()
                    .for_each(|memory| cu!(cuDestroyExternalMemory(*memory)));
            }
            Thing::Module(module, _) => cu!(cuModuleUnload(module)),
            Thing::Library(library, _) => cu!(cuLibraryUnload(library)),
            Thing::Array(array, _) => cu!(cuArrayDestroy(array)),
            Thing::Mipmap(mipmap, _) => cu!(cuMipmappedArrayDestroy(mipmap)),
        }
    }
}
