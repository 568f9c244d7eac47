//! Parameters of nodes: as the program gives them, reads them back and changes them.

use super::args::{Handle, In, InMut, Out};
use super::current;
use super::find;
use super::graph::look;
use crate::Result;
use crate::driver::driver;
use crate::graph::kernel::KernelWork;
use crate::graph::work::{HostWork, MemOpsWork, MemcpyWork, MemsetWork, Work};
use crate::launch::Geometry;
use crate::memop::MemOps;
use divvy_abi::*;

/// Parameters that describe a node's work.
pub trait NodeParams {
    /// The work, checked, with everything copied that the program may change afterwards.
    fn work(&self) -> Result<Work>;
}

impl NodeParams for CUDA_KERNEL_NODE_PARAMS {
    fn work(&self) -> Result<Work> {
        // SAFETY: the program vouches for its parameter lists.
        Ok(Work::Kernel(unsafe { kernel_work(self) }?))
    }
}

impl NodeParams for CUDA_KERNEL_NODE_PARAMS_v1 {
    fn work(&self) -> Result<Work> {
        CUDA_KERNEL_NODE_PARAMS {
            func: self.func,
            gridDimX: self.gridDimX,
            gridDimY: self.gridDimY,
            gridDimZ: self.gridDimZ,
            blockDimX: self.blockDimX,
            blockDimY: self.blockDimY,
            blockDimZ: self.blockDimZ,
            sharedMemBytes: self.sharedMemBytes,
            kernelParams: self.kernelParams,
            extra: self.extra,
            ..CUDA_KERNEL_NODE_PARAMS::default()
        }
        .work()
    }
}

impl NodeParams for (CUDA_MEMCPY3D, u64) {
    fn work(&self) -> Result<Work> {
        Ok(Work::Memcpy(MemcpyWork::read(
            self.0,
            current::named(self.1)?,
            &driver()?.arrays,
        )?))
    }
}

impl NodeParams for (CUDA_MEMSET_NODE_PARAMS, u64) {
    fn work(&self) -> Result<Work> {
        Ok(Work::Memset(MemsetWork::read(self.0, current::named(self.1)?)?))
    }
}

impl NodeParams for CUDA_HOST_NODE_PARAMS {
    fn work(&self) -> Result<Work> {
        Ok(Work::Host(HostWork {
            function: self.fn_.ok_or(CUDA_ERROR_INVALID_VALUE)?,
            data: self.userData as u64,
            mode: 0,
        }))
    }
}

impl NodeParams for CUDA_BATCH_MEM_OP_NODE_PARAMS {
    fn work(&self) -> Result<Work> {
        if self.flags != 0 || self.count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the program's list has as many entries as it says.
        let list = unsafe { crate::params::list(self.paramArray, self.count as usize) }?;
        Ok(Work::MemOps(MemOpsWork {
            ops: MemOps::read(&driver()?.addresses, list.to_vec())?,
            flags: self.flags,
            context: current::named(self.ctx as u64)?,
        }))
    }
}

impl NodeParams for CUgraphNodeParams {
    fn work(&self) -> Result<Work> {
        let given = &self.anonymous1;
        // SAFETY: the type says which member of the union the program filled in, and any bits are numbers or addresses.
        unsafe {
            match self.type_ {
                CU_GRAPH_NODE_TYPE_KERNEL => given.kernel.as_v2().work(),
                CU_GRAPH_NODE_TYPE_MEMCPY => {
                    if given.memcpy.flags != 0 {
                        return Err(CUDA_ERROR_INVALID_VALUE);
                    }
                    (given.memcpy.copyParams, given.memcpy.copyCtx as u64).work()
                }
                CU_GRAPH_NODE_TYPE_MEMSET => {
                    let v2 = given.memset;
                    let v1 = CUDA_MEMSET_NODE_PARAMS {
                        dst: v2.dst,
                        pitch: v2.pitch,
                        value: v2.value,
                        elementSize: v2.elementSize,
                        width: v2.width,
                        height: v2.height,
                    };
                    (v1, v2.ctx as u64).work()
                }
                CU_GRAPH_NODE_TYPE_HOST => Ok(Work::Host(HostWork {
                    function: given.host.fn_.ok_or(CUDA_ERROR_INVALID_VALUE)?,
                    data: given.host.userData as u64,
                    mode: given.host.syncMode,
                })),
                CU_GRAPH_NODE_TYPE_EMPTY => Ok(Work::Empty),
                CU_GRAPH_NODE_TYPE_WAIT_EVENT => Ok(Work::Wait(event(given.eventWait.event as u64)?)),
                CU_GRAPH_NODE_TYPE_EVENT_RECORD => Ok(Work::Record(event(given.eventRecord.event as u64)?)),
                CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
                    let v2 = given.memOp;
                    CUDA_BATCH_MEM_OP_NODE_PARAMS {
                        ctx: v2.ctx,
                        count: v2.count,
                        paramArray: v2.paramArray,
                        flags: v2.flags,
                    }
                    .work()
                }
                CU_GRAPH_NODE_TYPE_MEM_ALLOC | CU_GRAPH_NODE_TYPE_MEM_FREE | CU_GRAPH_NODE_TYPE_GRAPH => {
                    Err(CUDA_ERROR_NOT_SUPPORTED)
                }
                // Conditional bodies, external semaphores and fabrics are not emulated.
                CU_GRAPH_NODE_TYPE_CONDITIONAL
                | CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL
                | CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT
                | CU_GRAPH_NODE_TYPE_MEMCPY_BATCH
                | CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH
                | CU_GRAPH_NODE_TYPE_EXTERNAL_ENGINE => Err(CUDA_ERROR_NOT_SUPPORTED),
                _ => Err(CUDA_ERROR_INVALID_VALUE),
            }
        }
    }
}

fn event(handle: u64) -> Result<std::sync::Arc<crate::event::Event>> {
    driver()?.event(handle).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// Reads a kernel node's parameters.
///
/// # Safety
/// The parameter lists describe the kernel's parameters, as CUDA requires.
unsafe fn kernel_work(raw: &CUDA_KERNEL_NODE_PARAMS) -> Result<KernelWork> {
    let (func, kern) = (raw.func as u64, raw.kern as u64);
    let context = match (func, raw.ctx as u64) {
        // A kernel without a context runs in the current one.
        (0, context) => current::named(context)?,
        _ => current::context()?,
    };
    let target = find::target(if func == 0 { kern } else { func });
    let target = target.map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let geometry = Geometry {
        grid: [raw.gridDimX, raw.gridDimY, raw.gridDimZ],
        block: [raw.blockDimX, raw.blockDimY, raw.blockDimZ],
        shared_bytes: raw.sharedMemBytes,
        cooperative: false,
    };
    let function = target.function(&context, &driver()?.modules)?;
    let func = if func == 0 { 0 } else { function.handle };
    // SAFETY: promised by the caller.
    unsafe { KernelWork::gather(function, func, kern, geometry, raw.kernelParams, raw.extra) }
}

/// The third version of the structure differs from the second in nothing that is used here.
trait AsV2 {
    fn as_v2(&self) -> CUDA_KERNEL_NODE_PARAMS;
}

impl AsV2 for CUDA_KERNEL_NODE_PARAMS_v3 {
    fn as_v2(&self) -> CUDA_KERNEL_NODE_PARAMS {
        CUDA_KERNEL_NODE_PARAMS {
            func: self.func,
            gridDimX: self.gridDimX,
            gridDimY: self.gridDimY,
            gridDimZ: self.gridDimZ,
            blockDimX: self.blockDimX,
            blockDimY: self.blockDimY,
            blockDimZ: self.blockDimZ,
            sharedMemBytes: self.sharedMemBytes,
            kernelParams: self.kernelParams,
            extra: self.extra,
            kern: self.kern,
            ctx: self.ctx,
        }
    }
}

/// One kind of work's parameters, or a refusal if the node is of another kind.
macro_rules! of_kind {
    ($node:expr, $pattern:pat => $value:expr) => {
        look($node.0, |node| match &node.work {
            $pattern => Ok($value),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })??
    };
}

entry! {
    fn cuGraphKernelNodeGetParams(node: Handle<CUgraphNode>, params: Out<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let all = of_kind!(node, Work::Kernel(kernel) => (kernel.write(), kernel.function.handle));
        params.set(CUDA_KERNEL_NODE_PARAMS_v1 {
            func: all.1 as CUfunction,
            gridDimX: all.0.gridDimX,
            gridDimY: all.0.gridDimY,
            gridDimZ: all.0.gridDimZ,
            blockDimX: all.0.blockDimX,
            blockDimY: all.0.blockDimY,
            blockDimZ: all.0.blockDimZ,
            sharedMemBytes: all.0.sharedMemBytes,
            kernelParams: all.0.kernelParams,
            extra: all.0.extra,
        })
    }

    fn cuGraphKernelNodeGetParams_v2(node: Handle<CUgraphNode>, params: Out<CUDA_KERNEL_NODE_PARAMS>) {
        params.set(of_kind!(node, Work::Kernel(kernel) => kernel.write()))
    }

    fn cuGraphKernelNodeSetParams(node: Handle<CUgraphNode>, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        set(node.0, params.get()?.work()?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: Handle<CUgraphNode>, params: In<CUDA_KERNEL_NODE_PARAMS>) {
        set(node.0, params.get()?.work()?)
    }

    fn cuGraphMemcpyNodeGetParams(node: Handle<CUgraphNode>, params: Out<CUDA_MEMCPY3D>) {
        params.set(of_kind!(node, Work::Memcpy(copy) => copy.copy.0))
    }

    fn cuGraphMemcpyNodeSetParams(node: Handle<CUgraphNode>, params: In<CUDA_MEMCPY3D>) {
        let context = of_kind!(node, Work::Memcpy(copy) => copy.context.handle);
        set(node.0, (params.get()?, context).work()?)
    }

    fn cuGraphMemsetNodeGetParams(node: Handle<CUgraphNode>, params: Out<CUDA_MEMSET_NODE_PARAMS>) {
        params.set(of_kind!(node, Work::Memset(fill) => fill.fill))
    }

    fn cuGraphMemsetNodeSetParams(node: Handle<CUgraphNode>, params: In<CUDA_MEMSET_NODE_PARAMS>) {
        let context = of_kind!(node, Work::Memset(fill) => fill.context.handle);
        set(node.0, (params.get()?, context).work()?)
    }

    fn cuGraphHostNodeGetParams(node: Handle<CUgraphNode>, params: Out<CUDA_HOST_NODE_PARAMS>) {
        params.set(of_kind!(node, Work::Host(host) => CUDA_HOST_NODE_PARAMS {
            fn_: Some(host.function),
            userData: host.data as *mut c_void,
        }))
    }

    fn cuGraphHostNodeSetParams(node: Handle<CUgraphNode>, params: In<CUDA_HOST_NODE_PARAMS>) {
        set(node.0, params.get()?.work()?)
    }

    fn cuGraphEventRecordNodeGetEvent(node: Handle<CUgraphNode>, out: Out<CUevent>) {
        out.set(of_kind!(node, Work::Record(event) => event.handle) as CUevent)
    }

    fn cuGraphEventRecordNodeSetEvent(node: Handle<CUgraphNode>, handle: Handle<CUevent>) {
        set(node.0, Work::Record(event(handle.0)?))
    }

    fn cuGraphEventWaitNodeGetEvent(node: Handle<CUgraphNode>, out: Out<CUevent>) {
        out.set(of_kind!(node, Work::Wait(event) => event.handle) as CUevent)
    }

    fn cuGraphEventWaitNodeSetEvent(node: Handle<CUgraphNode>, handle: Handle<CUevent>) {
        set(node.0, Work::Wait(event(handle.0)?))
    }

    fn cuGraphBatchMemOpNodeGetParams(node: Handle<CUgraphNode>, params: Out<CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
        params.set(of_kind!(node, Work::MemOps(ops) => ops_params(ops)))
    }

    fn cuGraphBatchMemOpNodeSetParams(node: Handle<CUgraphNode>, params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
        set(node.0, params.get()?.work()?)
    }

    fn cuGraphMemAllocNodeGetParams(node: Handle<CUgraphNode>, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>) {
        params.set(of_kind!(node, Work::Alloc(reserved) => reserved.params()))
    }

    fn cuGraphMemFreeNodeGetParams(node: Handle<CUgraphNode>, pointer: Out<CUdeviceptr>) {
        pointer.set(of_kind!(node, Work::Free(reserved) => reserved.base()))
    }

    fn cuGraphNodeGetParams(node: Handle<CUgraphNode>, params: Out<CUgraphNodeParams>) {
        params.set(look(node.0, |node| write(&node.work))?)
    }

    fn cuGraphNodeSetParams | cuGraphNodeSetParams_v2(node: Handle<CUgraphNode>, params: InMut<CUgraphNodeParams>) {
        set(node.0, params.read().get()?.work()?)
    }

    fn cuGraphKernelNodeGetAttribute(
        node: Handle<CUgraphNode>,
        id: CUlaunchAttributeID,
        value: Out<CUlaunchAttributeValue>,
    ) {
        value.set(of_kind!(node, Work::Kernel(kernel) => kernel.attribute(id))?)
    }

    fn cuGraphKernelNodeSetAttribute(
        node: Handle<CUgraphNode>,
        id: CUlaunchAttributeID,
        value: In<CUlaunchAttributeValue>,
    ) {
        let value = value.get()?;
        change(node.0, |work| match work {
            Work::Kernel(kernel) => kernel.set_attribute(id, value),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })
    }

    fn cuGraphKernelNodeCopyAttributes(to: Handle<CUgraphNode>, from: Handle<CUgraphNode>) {
        let from = of_kind!(from, Work::Kernel(kernel) => kernel.clone());
        change(to.0, |work| match work {
            Work::Kernel(kernel) => kernel.copy_attributes(&from),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })
    }
}

fn change(node: u64, body: impl FnOnce(&mut Work) -> Result) -> Result {
    let graph = find::graph_of(node)?;
    let mut inner = graph.lock();
    body(&mut inner.node(node)?.work)
}

/// Replaces a node's work by other work of its kind.
fn set(node: u64, new: Work) -> Result {
    change(node, |work| {
        *work = match (&*work, new) {
            (Work::Kernel(old), Work::Kernel(new)) => Work::Kernel(old.with(new)?),
            (Work::Alloc(_) | Work::Free(_) | Work::Child(_), _) => return Err(CUDA_ERROR_NOT_SUPPORTED),
            (old, new) if old.kind() == new.kind() => new,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        Ok(())
    })
}

fn ops_params(work: &MemOpsWork) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: work.context.handle as CUcontext,
        count: work.ops.raw.len() as u32,
        paramArray: work.ops.raw.as_ptr().cast_mut().cast(),
        flags: work.flags,
    }
}

/// A node's parameters in the form that serves all kinds.
fn write(work: &Work) -> CUgraphNodeParams {
    let mut params = CUgraphNodeParams {
        type_: work.kind(),
        ..CUgraphNodeParams::default()
    };
    let to = &mut params.anonymous1;
    match work {
        Work::Kernel(kernel) => {
            let v2 = kernel.write();
            to.kernel = CUDA_KERNEL_NODE_PARAMS_v3 {
                func: v2.func,
                gridDimX: v2.gridDimX,
                gridDimY: v2.gridDimY,
                gridDimZ: v2.gridDimZ,
                blockDimX: v2.blockDimX,
                blockDimY: v2.blockDimY,
                blockDimZ: v2.blockDimZ,
                sharedMemBytes: v2.sharedMemBytes,
                kernelParams: v2.kernelParams,
                extra: v2.extra,
                kern: v2.kern,
                ctx: v2.ctx,
            };
        }
        Work::Memcpy(copy) => {
            to.memcpy = CUDA_MEMCPY_NODE_PARAMS {
                copyCtx: copy.context.handle as CUcontext,
                copyParams: copy.copy.0,
                ..CUDA_MEMCPY_NODE_PARAMS::default()
            };
        }
        Work::Memset(MemsetWork { fill, context }) => {
            to.memset = CUDA_MEMSET_NODE_PARAMS_v2 {
                dst: fill.dst,
                pitch: fill.pitch,
                value: fill.value,
                elementSize: fill.elementSize,
                width: fill.width,
                height: fill.height,
                ctx: context.handle as CUcontext,
            };
        }
        Work::Host(host) => {
            to.host = CUDA_HOST_NODE_PARAMS_v2 {
                fn_: Some(host.function),
                userData: host.data as *mut c_void,
                syncMode: host.mode,
                ..CUDA_HOST_NODE_PARAMS_v2::default()
            };
        }
        Work::Child(child) => {
            to.graph = CUDA_CHILD_GRAPH_NODE_PARAMS {
                graph: child.handle as CUgraph,
                ownership: CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID,
            };
        }
        Work::Empty => {}
        Work::Wait(event) => to.eventWait.event = event.handle as CUevent,
        Work::Record(event) => to.eventRecord.event = event.handle as CUevent,
        Work::Alloc(reserved) => {
            let v1 = reserved.params();
            to.alloc = CUDA_MEM_ALLOC_NODE_PARAMS_v2 {
                poolProps: v1.poolProps,
                accessDescs: v1.accessDescs,
                accessDescCount: v1.accessDescCount,
                bytesize: v1.bytesize,
                dptr: v1.dptr,
            };
        }
        Work::Free(reserved) => to.free.dptr = reserved.base(),
        Work::MemOps(ops) => {
            let v1 = ops_params(ops);
            to.memOp = CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 {
                ctx: v1.ctx,
                count: v1.count,
                paramArray: v1.paramArray,
                flags: v1.flags,
            };
        }
    }
    params
}
