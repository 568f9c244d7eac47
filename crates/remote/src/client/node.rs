//! Nodes of graphs with parameters: kernels, copies, fills, functions of the program, memory.
//!
//! All forms of the interface become one message: the node's type, then its parameters. A copy of memory that the server
//! does not see is refused, since the graph would read it at each launch.
#![allow(non_snake_case)]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use divvy_abi::*;

use super::arguments::{put_handles, put_inputs, write_name};
use super::copy3d::BoxCopy;
use super::parameters::{self, Values};
use super::{callback, location, new_name, thread};
use crate::fork::OfProcess;
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{
    EXEC_NODE_SET, EXEC_UPDATE, INSTANTIATE, NODE_ADD, NODE_GET, NODE_SET, PER_THREAD,
};
use crate::wire::{Malformed, Reader, Writer};

/// A node's type and parameters, as they are sent.
struct Node {
    sort: CUgraphNodeType,
    bytes: Vec<u8>,
}

impl Node {
    fn new(sort: CUgraphNodeType, put: impl FnOnce(&mut Writer<'_>)) -> Result<Self, CUresult> {
        let mut bytes = vec![0; thread::capacity()?];
        let mut to = Writer::new(&mut bytes);
        put(&mut to);
        let length = to.finish().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        bytes.truncate(length);
        Ok(Self { sort, bytes })
    }

    fn put(&self, m: &mut Writer<'_>) {
        m.plain(self.sort.0);
        m.bytes(&self.bytes);
    }

    /// # Safety
    /// The program vouches for its lists.
    unsafe fn kernel(symbol: Symbol, p: &CUDA_KERNEL_NODE_PARAMS) -> Result<Self, CUresult> {
        let function = match p.func.bits() {
            0 => p.kern.bits(),
            function => function,
        };
        let shape = [
            p.gridDimX,
            p.gridDimY,
            p.gridDimZ,
            p.blockDimX,
            p.blockDimY,
            p.blockDimZ,
            p.sharedMemBytes,
        ];
        parameters::with(symbol, function, |known| {
            // SAFETY: promised by the caller.
            let values = unsafe { Values::of(known, p.kernelParams, p.extra) }?;
            Self::new(CU_GRAPH_NODE_TYPE_KERNEL, |m| {
                m.plain(function);
                for number in shape {
                    m.plain(number);
                }
                m.plain(p.ctx.bits());
                values.put(m);
            })
        })
    }

    fn memcpy(symbol: Symbol, copy: &CUDA_MEMCPY3D, context: CUcontext) -> Result<Self, CUresult> {
        let copy = BoxCopy::read(symbol, copy)?;
        if copy.needs_staging() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        Self::new(CU_GRAPH_NODE_TYPE_MEMCPY, |m| {
            m.plain(context.bits());
            copy.put(m);
        })
    }

    fn memset(p: &CUDA_MEMSET_NODE_PARAMS, context: CUcontext) -> Result<Self, CUresult> {
        Self::new(CU_GRAPH_NODE_TYPE_MEMSET, |m| {
            m.plain(context.bits());
            m.plain(p.dst);
            m.plain(p.pitch);
            m.plain(p.value);
            m.plain(p.elementSize);
            m.plain(p.width);
            m.plain(p.height);
        })
    }

    fn host(function: CUhostFn, data: *mut c_void, mode: u32) -> Result<Self, CUresult> {
        let address = callback::address(function);
        if address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let data = data.expose_provenance() as u64;
        let function = callback::announce_node(address, data);
        Self::new(CU_GRAPH_NODE_TYPE_HOST, |m| {
            m.plain(function);
            m.plain(data);
            m.plain(mode);
        })
    }

    fn word(sort: CUgraphNodeType, word: u64) -> Result<Self, CUresult> {
        Self::new(sort, |m| m.plain(word))
    }

    /// # Safety
    /// The program vouches for its list.
    unsafe fn alloc(p: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Result<Self, CUresult> {
        Self::new(CU_GRAPH_NODE_TYPE_MEM_ALLOC, |m| {
            m.plain(CUmemPoolProps {
                win32SecurityAttributes: std::ptr::null_mut(),
                ..p.poolProps
            });
            location::to_worker::<CUmemPoolProps>(m.last(size_of::<CUmemPoolProps>()));
            m.plain(p.bytesize as u64);
            // SAFETY: promised by the caller.
            unsafe { put_inputs(m, p.accessDescs, p.accessDescCount as u64) };
        })
    }

    /// # Safety
    /// The program filled in the member that the type names, and vouches for its lists.
    unsafe fn any(symbol: Symbol, p: &CUgraphNodeParams) -> Result<Self, CUresult> {
        let of = &p.anonymous1;
        // SAFETY: promised by the caller; any bits are numbers or addresses.
        unsafe {
            match p.type_ {
                CU_GRAPH_NODE_TYPE_KERNEL => Self::kernel(symbol, &second_version(&of.kernel)),
                CU_GRAPH_NODE_TYPE_MEMCPY if of.memcpy.flags == 0 => {
                    Self::memcpy(symbol, &of.memcpy.copyParams, of.memcpy.copyCtx)
                }
                CU_GRAPH_NODE_TYPE_MEMCPY => Err(CUDA_ERROR_INVALID_VALUE),
                CU_GRAPH_NODE_TYPE_MEMSET => {
                    let p = of.memset;
                    let first = CUDA_MEMSET_NODE_PARAMS {
                        dst: p.dst,
                        pitch: p.pitch,
                        value: p.value,
                        elementSize: p.elementSize,
                        width: p.width,
                        height: p.height,
                    };
                    Self::memset(&first, p.ctx)
                }
                CU_GRAPH_NODE_TYPE_HOST => Self::host(of.host.fn_, of.host.userData, of.host.syncMode),
                CU_GRAPH_NODE_TYPE_GRAPH => Self::word(p.type_, of.graph.graph.bits()),
                CU_GRAPH_NODE_TYPE_EMPTY => Self::new(p.type_, |_| {}),
                CU_GRAPH_NODE_TYPE_WAIT_EVENT => Self::word(p.type_, of.eventWait.event.bits()),
                CU_GRAPH_NODE_TYPE_EVENT_RECORD => Self::word(p.type_, of.eventRecord.event.bits()),
                CU_GRAPH_NODE_TYPE_MEM_ALLOC => Self::alloc(&CUDA_MEM_ALLOC_NODE_PARAMS {
                    poolProps: of.alloc.poolProps,
                    accessDescs: of.alloc.accessDescs,
                    accessDescCount: of.alloc.accessDescCount,
                    bytesize: of.alloc.bytesize,
                    dptr: 0,
                }),
                CU_GRAPH_NODE_TYPE_MEM_FREE => Self::word(p.type_, of.free.dptr),
                _ => Err(CUDA_ERROR_NOT_SUPPORTED),
            }
        }
    }
}

fn second_version(p: &CUDA_KERNEL_NODE_PARAMS_v3) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: p.func,
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
        kern: p.kern,
        ctx: p.ctx,
    }
}

/// The first version has no kernel without a context.
fn of_first_version(p: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: p.func,
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
        ..CUDA_KERNEL_NODE_PARAMS::default()
    }
}

/// Where a new node goes.
struct Place {
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
}

impl Place {
    /// Adds a node. Gives the address of memory that it allocates.
    ///
    /// # Safety
    /// The program vouches for its pointers.
    unsafe fn add(&self, symbol: Symbol, node: Result<Node, CUresult>) -> Result<u64, CUresult> {
        let node = node?;
        if self.node.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (name, mut address) = (new_name(Kind::GraphNode), 0);
        let code = thread::call(
            NODE_ADD,
            symbol,
            |m| {
                m.plain(name);
                m.plain(self.graph.bits());
                // SAFETY: promised by the caller.
                unsafe {
                    put_handles(m, self.before, self.count as u64);
                    put_inputs(m, self.edges, self.count as u64);
                }
                node.put(m);
            },
            |m, good| {
                if good {
                    address = m.plain()?;
                    // SAFETY: promised by the caller.
                    unsafe { write_name(self.node, name) };
                }
                Ok(())
            },
        );
        if code == CUDA_SUCCESS {
            Ok(address)
        } else {
            Err(code)
        }
    }
}

fn code<T>(outcome: Result<T, CUresult>) -> CUresult {
    outcome.map_or_else(|code| code, |_| CUDA_SUCCESS)
}

macro_rules! add {
    ($($name:ident ($p:ident: $of:ty $(, $context:ident)?) $symbol:ident $node:expr;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            numDependencies: usize,
            $p: $of,
            $($context: CUcontext,)?
        ) -> CUresult {
            const $symbol: Symbol = Symbol::$name;
            let edges = std::ptr::null();
            let place = Place { node: phGraphNode, graph: hGraph, before: dependencies, edges, count: numDependencies };
            // SAFETY: the program vouches for its pointers.
            unsafe {
                let Some($p) = $p.as_ref() else {
                    return CUDA_ERROR_INVALID_VALUE;
                };
                code(place.add($symbol, $node))
            }
        }
    )*};
}

add! {
    cuGraphAddKernelNode (p: *const CUDA_KERNEL_NODE_PARAMS_v1) S Node::kernel(S, &of_first_version(p));
    cuGraphAddKernelNode_v2 (p: *const CUDA_KERNEL_NODE_PARAMS) S Node::kernel(S, p);
    cuGraphAddMemcpyNode (p: *const CUDA_MEMCPY3D, ctx) S Node::memcpy(S, p, ctx);
    cuGraphAddMemsetNode (p: *const CUDA_MEMSET_NODE_PARAMS, ctx) S Node::memset(p, ctx);
    cuGraphAddHostNode (p: *const CUDA_HOST_NODE_PARAMS) S Node::host(p.fn_, p.userData, 0);
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuGraphAddMemAllocNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    let place = Place {
        node: phGraphNode,
        graph: hGraph,
        before: dependencies,
        edges: std::ptr::null(),
        count: numDependencies,
    };
    // SAFETY: the program vouches for its pointers.
    unsafe {
        let Some(p) = nodeParams.as_mut() else {
            return CUDA_ERROR_INVALID_VALUE;
        };
        code(
            place
                .add(Symbol::cuGraphAddMemAllocNode, Node::alloc(p))
                .map(|address| p.dptr = address),
        )
    }
}

/// # Safety
/// As of [`Place::add`].
unsafe fn add_any(symbol: Symbol, place: &Place, p: *mut CUgraphNodeParams) -> CUresult {
    // SAFETY: promised by the caller.
    unsafe {
        let Some(p) = p.as_mut() else {
            return CUDA_ERROR_INVALID_VALUE;
        };
        code(place.add(symbol, Node::any(symbol, p)).map(|address| {
            if p.type_ == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
                p.anonymous1.alloc.dptr = address;
            }
        }))
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuGraphAddNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut CUgraphNodeParams,
) -> CUresult {
    let (edges, count) = (std::ptr::null(), numDependencies);
    let place = Place {
        node: phGraphNode,
        graph: hGraph,
        before: dependencies,
        edges,
        count,
    };
    // SAFETY: the program vouches for its pointers.
    unsafe { add_any(Symbol::cuGraphAddNode, &place, nodeParams) }
}

macro_rules! add_with_edges {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            dependencyData: *const CUgraphEdgeData,
            numDependencies: usize,
            nodeParams: *mut CUgraphNodeParams,
        ) -> CUresult {
            let (edges, count) = (dependencyData, numDependencies);
            let place = Place { node: phGraphNode, graph: hGraph, before: dependencies, edges, count };
            // SAFETY: the program vouches for its pointers.
            unsafe { add_any(Symbol::$name, &place, nodeParams) }
        }
    )*};
}

add_with_edges! { cuGraphAddNode_v2 cuGraphAddNode_v3 }

/// Changes the parameters of a node, or of a node of an executable graph.
fn set(
    symbol: Symbol,
    exec: Option<CUgraphExec>,
    hNode: CUgraphNode,
    node: Result<Node, CUresult>,
) -> CUresult {
    let node = match node {
        Ok(node) => node,
        Err(code) => return code,
    };
    let id = if exec.is_some() { EXEC_NODE_SET } else { NODE_SET };
    thread::call(
        id,
        symbol,
        |m| {
            if let Some(exec) = exec {
                m.plain(exec.bits());
            }
            m.plain(hNode.bits());
            node.put(m);
        },
        |_, _| Ok(()),
    )
}

macro_rules! set {
    ($($name:ident ([$($exec:ident)?] $p:ident: $of:ty $(, $context:ident)?) $symbol:ident $node:expr;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            $($exec: CUgraphExec,)?
            hNode: CUgraphNode,
            $p: $of,
            $($context: CUcontext,)?
        ) -> CUresult {
            const $symbol: Symbol = Symbol::$name;
            let exec: &[CUgraphExec] = &[$($exec)?];
            // SAFETY: the program vouches for its pointers.
            unsafe {
                let Some($p) = $p.as_ref() else {
                    return CUDA_ERROR_INVALID_VALUE;
                };
                set($symbol, exec.first().copied(), hNode, $node)
            }
        }
    )*};
}

set! {
    cuGraphKernelNodeSetParams ([] p: *const CUDA_KERNEL_NODE_PARAMS_v1) S Node::kernel(S, &of_first_version(p));
    cuGraphKernelNodeSetParams_v2 ([] p: *const CUDA_KERNEL_NODE_PARAMS) S Node::kernel(S, p);
    cuGraphMemcpyNodeSetParams ([] p: *const CUDA_MEMCPY3D) S Node::memcpy(S, p, std::ptr::null_mut());
    cuGraphMemsetNodeSetParams ([] p: *const CUDA_MEMSET_NODE_PARAMS) S Node::memset(p, std::ptr::null_mut());
    cuGraphHostNodeSetParams ([] p: *const CUDA_HOST_NODE_PARAMS) S Node::host(p.fn_, p.userData, 0);
    cuGraphNodeSetParams ([] p: *mut CUgraphNodeParams) S Node::any(S, p);
    cuGraphNodeSetParams_v2 ([] p: *mut CUgraphNodeParams) S Node::any(S, p);
    cuGraphExecKernelNodeSetParams ([exec] p: *const CUDA_KERNEL_NODE_PARAMS_v1) S Node::kernel(S, &of_first_version(p));
    cuGraphExecKernelNodeSetParams_v2 ([exec] p: *const CUDA_KERNEL_NODE_PARAMS) S Node::kernel(S, p);
    cuGraphExecMemcpyNodeSetParams ([exec] p: *const CUDA_MEMCPY3D, ctx) S Node::memcpy(S, p, ctx);
    cuGraphExecMemsetNodeSetParams ([exec] p: *const CUDA_MEMSET_NODE_PARAMS, ctx) S Node::memset(p, ctx);
    cuGraphExecHostNodeSetParams ([exec] p: *const CUDA_HOST_NODE_PARAMS) S Node::host(p.fn_, p.userData, 0);
    cuGraphExecNodeSetParams ([exec] p: *mut CUgraphNodeParams) S Node::any(S, p);
}

/// Parameters of a kernel node as the program reads them: they stay until they are read again.
struct KernelParams {
    pointers: Vec<*mut c_void>,
    _values: Vec<u8>,
}

// SAFETY: the pointers lead into the values beside them, whose bytes are not moved.
unsafe impl Send for KernelParams {}

static KERNELS: OfProcess<Mutex<Option<HashMap<u64, KernelParams>>>> = OfProcess::new();

/// Asks for the parameters of a node of a kind.
fn get<T>(
    symbol: Symbol,
    node: CUgraphNode,
    sort: CUgraphNodeType,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, CUresult> {
    let mut value = None;
    let code = thread::call(
        NODE_GET,
        symbol,
        |m| {
            m.plain(node.bits());
            m.plain(sort.0);
        },
        |m, good| {
            if good {
                value = Some(read(m)?);
            }
            Ok(())
        },
    );
    match (code, value) {
        (CUDA_SUCCESS, Some(value)) => Ok(value),
        (CUDA_SUCCESS, None) => Err(CUDA_ERROR_UNKNOWN),
        (code, _) => Err(code),
    }
}

fn kernel_params(symbol: Symbol, node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    let (mut p, mut values) = get(symbol, node, CU_GRAPH_NODE_TYPE_KERNEL, |m| {
        let p = CUDA_KERNEL_NODE_PARAMS {
            func: Word::from_bits(m.plain()?),
            kern: Word::from_bits(m.plain()?),
            ctx: Word::from_bits(m.plain()?),
            gridDimX: m.plain()?,
            gridDimY: m.plain()?,
            gridDimZ: m.plain()?,
            blockDimX: m.plain()?,
            blockDimY: m.plain()?,
            blockDimZ: m.plain()?,
            sharedMemBytes: m.plain()?,
            ..CUDA_KERNEL_NODE_PARAMS::default()
        };
        Ok((p, m.rest().to_vec()))
    })?;
    let function = if p.func.is_null() {
        p.kern.bits()
    } else {
        p.func.bits()
    };
    let pointers = parameters::with(symbol, function, |known| {
        let inside = |&(offset, size): &(u32, u32)| {
            ((offset + size) as usize <= values.len()).then(|| values[offset as usize..].as_mut_ptr().cast())
        };
        let pointers = known.parameters.iter().map(inside).collect::<Option<Vec<_>>>();
        pointers.ok_or(CUDA_ERROR_UNKNOWN)
    })?;
    let mut kept = KernelParams {
        pointers,
        _values: values,
    };
    if !kept.pointers.is_empty() {
        p.kernelParams = kept.pointers.as_mut_ptr();
    }
    let mut all = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default().insert(node.bits(), kept);
    Ok(p)
}

/// A function of the program and its data, from what the server was told of them.
fn host_params(m: &mut Reader<'_>) -> Result<CUDA_HOST_NODE_PARAMS, Malformed> {
    let (function, data): (u64, u64) = (m.plain()?, m.plain()?);
    // The program may call it, or give it to another graph. A node that another library made has none here.
    if (function, data) != (0, 0) && !callback::is_known(function, data) {
        return Err(Malformed);
    }
    let address = std::ptr::with_exposed_provenance::<c_void>(function as usize);
    Ok(CUDA_HOST_NODE_PARAMS {
        // SAFETY: null, or the address of a function that the program gave.
        fn_: unsafe { std::mem::transmute::<*const c_void, CUhostFn>(address) },
        userData: std::ptr::with_exposed_provenance_mut(data as usize),
    })
}

/// Writes a result, where there is one.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn write<T>(to: *mut T, value: impl FnOnce() -> Result<T, CUresult>) -> CUresult {
    if to.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller vouches for the place.
    code(value().map(|value| unsafe { to.write(value) }))
}

macro_rules! get {
    ($($name:ident $of:ty, $node:ident $symbol:ident $value:expr;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name($node: CUgraphNode, nodeParams: *mut $of) -> CUresult {
            const $symbol: Symbol = Symbol::$name;
            // SAFETY: the program vouches for its pointer.
            unsafe { write(nodeParams, || $value) }
        }
    )*};
}

get! {
    cuGraphKernelNodeGetParams CUDA_KERNEL_NODE_PARAMS_v1, node S kernel_params(S, node).map(|p| CUDA_KERNEL_NODE_PARAMS_v1 {
        func: if p.func.is_null() { p.kern.cast() } else { p.func },
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
    });
    cuGraphKernelNodeGetParams_v2 CUDA_KERNEL_NODE_PARAMS, node S kernel_params(S, node);
    cuGraphMemsetNodeGetParams CUDA_MEMSET_NODE_PARAMS, node S get(S, node, CU_GRAPH_NODE_TYPE_MEMSET, |m| {
        Ok(CUDA_MEMSET_NODE_PARAMS {
            dst: m.plain()?,
            pitch: m.plain()?,
            value: m.plain()?,
            elementSize: m.plain()?,
            width: m.plain()?,
            height: m.plain()?,
        })
    });
    cuGraphHostNodeGetParams CUDA_HOST_NODE_PARAMS, node S get(S, node, CU_GRAPH_NODE_TYPE_HOST, host_params);
}

macro_rules! instantiate {
    ($($name:ident $flags:expr;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            phGraphExec: *mut CUgraphExec,
            hGraph: CUgraph,
            instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
        ) -> CUresult {
            // SAFETY: the program vouches for its pointers.
            let Some(p) = (unsafe { instantiateParams.as_mut() }).filter(|_| !phGraphExec.is_null()) else {
                return CUDA_ERROR_INVALID_VALUE;
            };
            let name = new_name(Kind::GraphExec);
            thread::call(
                INSTANTIATE,
                Symbol::$name,
                |m| {
                    m.plain($flags);
                    m.plain(name);
                    m.plain(hGraph.bits());
                    m.plain(p.flags);
                    m.plain(p.hUploadStream.bits());
                },
                |m, good| {
                    if !m.rest().is_empty() {
                        p.result_out = CUgraphInstantiateResult(m.plain()?);
                        p.hErrNode_out = Word::from_bits(m.plain()?);
                    }
                    if good {
                        // SAFETY: the program vouches for its pointer.
                        unsafe { write_name(phGraphExec, name) };
                    }
                    Ok(())
                },
            )
        }
    )*};
}

instantiate! {
    cuGraphInstantiateWithParams 0_u8;
    cuGraphInstantiateWithParams_ptsz PER_THREAD;
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuGraphExecUpdate_v2(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    resultInfo: *mut CUgraphExecUpdateResultInfo,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    let Some(info) = (unsafe { resultInfo.as_mut() }) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    thread::call(
        EXEC_UPDATE,
        Symbol::cuGraphExecUpdate_v2,
        |m| {
            m.plain(hGraphExec.bits());
            m.plain(hGraph.bits());
        },
        |m, _| {
            if !m.rest().is_empty() {
                info.result = CUgraphExecUpdateResult(m.plain()?);
                info.errorNode = Word::from_bits(m.plain()?);
                info.errorFromNode = Word::from_bits(m.plain()?);
            }
            Ok(())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn nothing(_: *mut c_void) {}

    #[test]
    fn a_node_names_no_function_that_the_program_did_not_give() {
        let read = |function: u64, data: u64| {
            let mut message = [0; 16];
            let mut m = Writer::new(&mut message);
            m.plain(function);
            m.plain(data);
            host_params(&mut Reader::new(&message)).map(|p| (p.fn_.is_some(), p.userData.addr()))
        };
        let function = (nothing as *const c_void).expose_provenance() as u64;
        assert_eq!(read(function, 5), Err(Malformed));
        callback::remember(function, 5);
        assert_eq!(read(function, 5), Ok((true, 5)));
        assert_eq!(read(function, 6), Err(Malformed));
        assert_eq!(read(function + 1, 5), Err(Malformed));
        assert_eq!(read(0, 5), Err(Malformed));
        assert_eq!(read(0, 0), Ok((false, 0)));
    }
}
