//! Memory without an address that a program frees: code, arrays, graphs, and short-lived contexts.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use divvy_abi::*;

use crate::PAGE;
use crate::emulated::{code, cu, get};
use crate::process::{LIVE, ledger};
use crate::thing::Thing;
use crate::worker::{Worker, doze};

impl Worker {
    /// Code with a variable of some pages, as a module or as a library.
    pub fn code(&mut self) {
        let bytes = (1 + self.random.below(16)) * PAGE;
        let text = format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 big[{bytes}];\n"
        );
        let image = std::ffi::CString::new(text).expect("no NUL");
        if self.random.below(2) == 0 {
            let mut module = null_mut();
            let result = code!(cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
            return self.got(result, bytes, || Thing::Module(module, bytes));
        }
        let mut library = null_mut();
        let result = code!(cuLibraryLoadData(
            &raw mut library,
            image.as_ptr().cast(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        self.got(result, bytes, || Thing::Library(library, bytes));
        if result == CUDA_SUCCESS {
            // It reaches a device at its first use there, but is charged from the load on.
            let (mut address, mut there) = (0, 0);
            cu!(cuLibraryGetGlobal(
                &raw mut address,
                &raw mut there,
                library,
                c"big".as_ptr()
            ));
            assert_eq!(there as u64, bytes);
        }
    }

    /// A context beside this process's own. Objects that were made in it end with it.
    pub fn passing_context(&mut self) {
        let passing: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let mut live = 0;
        for _ in 0..self.random.below(4) {
            let bytes = self.random.bytes();
            let mut pointer = 0;
            if code!(cuMemAlloc_v2(&raw mut pointer, bytes as usize)) == CUDA_SUCCESS {
                live += bytes;
                LIVE.fetch_add(bytes, Ordering::Relaxed);
                if self.random.below(2) == 0 {
                    self.post_pointer(pointer);
                }
            }
        }
        if self.random.below(2) == 0 {
            let stream: CUstream = get!(cuStreamCreate(0));
            cu!(cuLaunchHostFunc(stream, Some(doze), null_mut()));
        }
        // Memory that was opened in it ends with it.
        let before = self.things.len();
        self.foreign();
        let own = ledger().0;
        assert!(own >= LIVE.load(Ordering::Relaxed).min(live), "{own} charged");
        if self.things.len() > before && matches!(self.things[before], Thing::Opened(_) | Thing::External(..))
        {
            self.things.truncate(before);
        }
        LIVE.fetch_sub(live, Ordering::Relaxed);
        cu!(cuCtxDestroy_v2(passing));
    }

    pub fn array(&mut self) {
        let described = CUDA_ARRAY3D_DESCRIPTOR {
            Width: 1 + self.random.below(2000) as usize,
            Height: 1 + self.random.below(2000) as usize,
            Depth: 0,
            Format: CU_AD_FORMAT_FLOAT,
            NumChannels: 2,
            Flags: 0,
        };
        let bytes = (described.Width * described.Height * 8) as u64;
        if self.random.below(2) == 0 {
            let mut array = null_mut();
            let result = code!(cuArray3DCreate_v2(&raw mut array, &raw const described));
            self.got(result, bytes, || Thing::Array(array, bytes));
        } else {
            let mut mipmap = null_mut();
            let result = code!(cuMipmappedArrayCreate(&raw mut mipmap, &raw const described, 4));
            self.got(result, bytes, || Thing::Mipmap(mipmap, bytes));
        }
    }

    pub fn graph(&mut self, stream: CUstream) {
        let graph: CUgraph = get!(cuGraphCreate(0));
        let mut wanted = CUDA_MEM_ALLOC_NODE_PARAMS::default();
        wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.poolProps.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.bytesize = self.random.bytes() as usize;
        let node: CUgraphNode = get!(cuGraphAddMemAllocNode(
            graph,
            std::ptr::null(),
            0,
            &raw mut wanted
        ));
        let _free: CUgraphNode = get!(cuGraphAddMemFreeNode(graph, &raw const node, 1, wanted.dptr));
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        for _ in 0..2 {
            let result = code!(cuGraphLaunch(exec, stream));
            assert!(
                result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY,
                "{result:?}"
            );
        }
        cu!(cuStreamSynchronize(stream));
        cu!(cuGraphExecDestroy(exec));
        cu!(cuGraphDestroy(graph));
    }

    /// A captured allocation takes nothing, however large.
    pub fn capture(&mut self) {
        let stream: CUstream = get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0));
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        let pointer: CUdeviceptr = get!(cuMemAllocAsync(2 << 30, stream));
        cu!(cuMemFreeAsync(pointer, stream));
        let mut graph = null_mut();
        cu!(cuStreamEndCapture(stream, &raw mut graph));
        cu!(cuGraphDestroy(graph));
        cu!(cuStreamDestroy_v2(stream));
    }
}
