//! Memory that leaves its process, comes into it, or belongs to a graph: exported and imported handles, and graph memory.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use divvy_abi::{
    CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE, CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_MEM_ALLOC_NODE_PARAMS, CUdeviceptr, CUexternalMemory, CUgraph,
    CUgraphExec, CUgraphNode, CUipcMemHandle, CUmemGenericAllocationHandle,
};

use super::driver::{CudaError, Gpu, check};

/// Physical memory with a descriptor, and what was made of that in the same process.
#[derive(Clone, Copy, Debug)]
pub struct Exported {
    own: CUmemGenericAllocationHandle,
    import: Import,
}

#[derive(Clone, Copy, Debug)]
enum Import {
    /// cuMemImportFromShareableHandle.
    Physical(CUmemGenericAllocationHandle),
    /// cuImportExternalMemory, and the buffer that is mapped from it.
    External(CUexternalMemory, CUdeviceptr),
}

/// A graph that was launched, and the memory that its one node got.
#[derive(Clone, Copy, Debug)]
pub struct InGraph {
    graph: CUgraph,
    ready: CUgraphExec,
    address: CUdeviceptr,
}

impl Gpu {
    /// Physical memory that is exported as a descriptor, and imported from it again.
    pub(super) fn exported(&self, bytes: usize) -> Result<Exported, CudaError> {
        self.with_descriptor(bytes, |fd, _| {
            let mut import: CUmemGenericAllocationHandle = 0;
            let number = fd.as_raw_fd() as usize as *mut core::ffi::c_void;
            // SAFETY: a pointer to a live variable; for this kind of handle the pointer is the descriptor's number, which is open.
            let imported = unsafe {
                (self.table.cuMemImportFromShareableHandle)(
                    &mut import,
                    number,
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                )
            };
            check("cuMemImportFromShareableHandle", imported).map(|()| Import::Physical(import))
        })
    }

    /// The same, imported as external memory and mapped.
    pub(super) fn external(&self, bytes: usize) -> Result<Exported, CudaError> {
        self.with_descriptor(bytes, |fd, length| {
            let mut memory: CUexternalMemory = std::ptr::null_mut();
            let mut address: CUdeviceptr = 0;
            let mut of = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
                size: length as u64,
                ..Default::default()
            };
            of.handle.fd = fd.as_raw_fd();
            let whole = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
                size: length as u64,
                ..Default::default()
            };
            // SAFETY: live records and variables. The descriptor is the driver's once the import succeeds.
            unsafe {
                let imported = (self.table.cuImportExternalMemory)(&mut memory, &of);
                check("cuImportExternalMemory", imported)?;
                let _drivers_own = fd.into_raw_fd();
                let mapped = (self.table.cuExternalMemoryGetMappedBuffer)(&mut address, memory, &whole);
                if let Err(error) = check("cuExternalMemoryGetMappedBuffer", mapped) {
                    let _undone = (self.table.cuDestroyExternalMemory)(memory);
                    return Err(error);
                }
            }
            Ok(Import::External(memory, address))
        })
    }

    /// Makes physical memory, exports it, and has `import` take the descriptor and its length in bytes. Undone where that fails.
    fn with_descriptor(
        &self,
        bytes: usize,
        import: impl FnOnce(OwnedFd, usize) -> Result<Import, CudaError>,
    ) -> Result<Exported, CudaError> {
        let (minimum, _) = self.granularity()?;
        let length = bytes.next_multiple_of(minimum.max(1));
        let mut properties = self.pinned();
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut own: CUmemGenericAllocationHandle = 0;
        let mut number = -1_i32;
        // SAFETY: live records and variables; this kind of handle is written as a descriptor's number.
        let exported = unsafe {
            check(
                "cuMemCreate",
                (self.table.cuMemCreate)(&mut own, length, &properties, 0),
            )?;
            check(
                "cuMemExportToShareableHandle",
                (self.table.cuMemExportToShareableHandle)(
                    (&raw mut number).cast(),
                    own,
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                    0,
                ),
            )
        };
        // SAFETY: the driver has just opened it for this process, which owns it from here on.
        let made = exported.and_then(|()| import(unsafe { OwnedFd::from_raw_fd(number) }, length));
        match made {
            Ok(import) => Ok(Exported { own, import }),
            Err(error) => {
                // SAFETY: it was made above, and nothing has it any more.
                let _undone = unsafe { (self.table.cuMemRelease)(own) };
                Err(error)
            }
        }
    }

    pub(super) fn give_back_exported(&self, exported: Exported) -> Result<(), CudaError> {
        // SAFETY: handles and an address of this driver's, each given back once.
        unsafe {
            match exported.import {
                Import::Physical(import) => check("cuMemRelease", (self.table.cuMemRelease)(import))?,
                Import::External(memory, address) => {
                    check("cuMemFree", (self.table.cuMemFree_v2)(address))?;
                    let gone = (self.table.cuDestroyExternalMemory)(memory);
                    check("cuDestroyExternalMemory", gone)?;
                }
            }
            check("cuMemRelease", (self.table.cuMemRelease)(exported.own))
        }
    }

    /// The memory of a graph's one node: got when the graph is launched, and kept after that.
    pub(super) fn in_graph(&self, bytes: usize) -> Result<InGraph, CudaError> {
        let mut made = InGraph {
            graph: std::ptr::null_mut(),
            ready: std::ptr::null_mut(),
            address: 0,
        };
        let mut node: CUgraphNode = std::ptr::null_mut();
        let mut wanted = CUDA_MEM_ALLOC_NODE_PARAMS {
            bytesize: bytes,
            ..Default::default()
        };
        wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.poolProps.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        // SAFETY: live records and variables, and handles that this driver gave; the default stream.
        let launched = unsafe {
            check("cuGraphCreate", (self.table.cuGraphCreate)(&mut made.graph, 0))?;
            let added =
                (self.table.cuGraphAddMemAllocNode)(&mut node, made.graph, std::ptr::null(), 0, &mut wanted);
            check("cuGraphAddMemAllocNode", added)
                .and_then(|()| {
                    let ready = (self.table.cuGraphInstantiateWithFlags)(&mut made.ready, made.graph, 0);
                    check("cuGraphInstantiate", ready)
                })
                .and_then(|()| {
                    let launched = (self.table.cuGraphLaunch)(made.ready, std::ptr::null_mut());
                    check("cuGraphLaunch", launched)
                })
        };
        made.address = wanted.dptr;
        match launched {
            Ok(()) => Ok(made),
            Err(error) => {
                let _undone = self.destroy(made);
                Err(error)
            }
        }
    }

    pub(super) fn give_back_in_graph(&self, made: InGraph) -> Result<(), CudaError> {
        // SAFETY: the launch got it, and nothing has given it back.
        let given = unsafe { (self.table.cuMemFreeAsync)(made.address, std::ptr::null_mut()) };
        check("cuMemFreeAsync", given)?;
        self.destroy(made)
    }

    fn destroy(&self, made: InGraph) -> Result<(), CudaError> {
        // SAFETY: handles of this driver's, each destroyed once; none that was not made.
        unsafe {
            if !made.ready.is_null() {
                check("cuGraphExecDestroy", (self.table.cuGraphExecDestroy)(made.ready))?;
            }
            check("cuGraphDestroy", (self.table.cuGraphDestroy)(made.graph))
        }
    }

    /// Gives memory that graphs no longer use back to the device.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn trim_graphs(&self) -> Result<(), CudaError> {
        // SAFETY: no pointers.
        check("cuDeviceGraphMemTrim", unsafe {
            (self.table.cuDeviceGraphMemTrim)(self.device)
        })
    }

    /// By what another process can open memory of `cuMemAlloc`, in hexadecimal digits.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn ipc_handle(&self, address: CUdeviceptr) -> Result<String, CudaError> {
        let mut handle = CUipcMemHandle::default();
        // SAFETY: a live record.
        let told = unsafe { (self.table.cuIpcGetMemHandle)(&mut handle, address) };
        check("cuIpcGetMemHandle", told)?;
        let bytes = handle.reserved.iter();
        Ok(bytes
            .map(|byte| format!("{:02x}", byte.to_ne_bytes()[0]))
            .collect())
    }

    /// Opens another process's memory.
    ///
    /// # Errors
    /// What the driver answers; a text that is no handle is an invalid value.
    pub fn ipc_open(&self, text: &str) -> Result<CUdeviceptr, CudaError> {
        const CALL: &str = "cuIpcOpenMemHandle";
        let mut handle = CUipcMemHandle::default();
        for (at, byte) in handle.reserved.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).unwrap_or_default();
            let read = u8::from_str_radix(digits, 16).map_err(|_| CudaError {
                call: CALL,
                result: divvy_abi::CUDA_ERROR_INVALID_VALUE,
            })?;
            *byte = core::ffi::c_char::from_ne_bytes([read]);
        }
        let mut address: CUdeviceptr = 0;
        // SAFETY: a live variable; the driver judges the handle's bytes.
        let opened = unsafe {
            (self.table.cuIpcOpenMemHandle_v2)(
                &mut address,
                handle,
                divvy_abi::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0,
            )
        };
        check(CALL, opened).map(|()| address)
    }
}
