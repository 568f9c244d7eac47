//! Nodes of graphs with parameters: each message has the node's type, then its parameters.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::arguments::Used;
use super::copy3d::BoxCopy;
use super::{Call, Stop, launch};
use crate::handle::{Id, Kind, Word};
use crate::wire::by_hand::PER_THREAD;

/// A node's parameters as the driver below is given them, and what its memory lies in.
fn params(call: &mut Call<'_>) -> Result<CUgraphNodeParams, Stop> {
    let mut all = CUgraphNodeParams {
        type_: CUgraphNodeType(call.message.plain()?),
        ..CUgraphNodeParams::default()
    };
    let of = &mut all.anonymous1;
    match all.type_ {
        CU_GRAPH_NODE_TYPE_KERNEL => of.kernel = kernel(call)?,
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            let copyCtx = context(call)?;
            of.memcpy = CUDA_MEMCPY_NODE_PARAMS {
                copyCtx,
                copyParams: BoxCopy::read(call)?.copy,
                ..CUDA_MEMCPY_NODE_PARAMS::default()
            };
        }
        CU_GRAPH_NODE_TYPE_MEMSET => of.memset = memset(call)?,
        CU_GRAPH_NODE_TYPE_HOST => {
            let (function, data) = (call.message.plain()?, call.message.plain()?);
            let syncMode: u32 = call.message.plain()?;
            let (fn_, userData) = call.host_node(function, data)?;
            of.host = CUDA_HOST_NODE_PARAMS_v2 {
                fn_,
                userData,
                syncMode,
                ..CUDA_HOST_NODE_PARAMS_v2::default()
            };
        }
        CU_GRAPH_NODE_TYPE_GRAPH => of.graph.graph = Word::from_bits(call.handle(Kind::Graph)?.real),
        CU_GRAPH_NODE_TYPE_EMPTY => {}
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => of.eventWait.event = Word::from_bits(call.handle(Kind::Event)?.real),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            of.eventRecord.event = Word::from_bits(call.handle(Kind::Event)?.real);
        }
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let poolProps: CUmemPoolProps = call.message.plain()?;
            let bytesize = call.message.plain::<u64>()? as usize;
            let descriptions = call.inputs(size_of::<CUmemAccessDesc>())?;
            of.alloc = CUDA_MEM_ALLOC_NODE_PARAMS_v2 {
                poolProps: CUmemPoolProps {
                    win32SecurityAttributes: std::ptr::null_mut(),
                    ..poolProps
                },
                accessDescs: descriptions.pointer::<CUmemAccessDesc>(call.arena.base()),
                accessDescCount: descriptions.bytes() / size_of::<CUmemAccessDesc>(),
                bytesize,
                dptr: 0,
            };
        }
        CU_GRAPH_NODE_TYPE_MEM_FREE => {
            let address: u64 = call.message.plain()?;
            call.within(address, 0)?;
            of.free.dptr = address;
        }
        _ => return Err(Stop::Code(CUDA_ERROR_NOT_SUPPORTED)),
    }
    call.message.end()?;
    Ok(all)
}

fn context(call: &mut Call<'_>) -> Result<CUcontext, Stop> {
    Ok(Word::from_bits(call.handle(Kind::Context)?.real))
}

fn kernel(call: &mut Call<'_>) -> Result<CUDA_KERNEL_NODE_PARAMS_v3, Stop> {
    let function = call.handle(Kind::Function)?;
    let mut shape = [0_u32; 7];
    for number in &mut shape {
        *number = call.message.plain()?;
    }
    let ctx = context(call)?;
    let length = call.message.rest().len();
    let bytes = call.message.bytes(length)?;
    let kernelParams = launch::list(call, function, bytes)?;
    let [
        gridDimX,
        gridDimY,
        gridDimZ,
        blockDimX,
        blockDimY,
        blockDimZ,
        sharedMemBytes,
    ] = shape;
    let mut all = CUDA_KERNEL_NODE_PARAMS_v3 {
        gridDimX,
        gridDimY,
        gridDimZ,
        blockDimX,
        blockDimY,
        blockDimZ,
        sharedMemBytes,
        kernelParams,
        ctx,
        ..CUDA_KERNEL_NODE_PARAMS_v3::default()
    };
    match function.id().map(Id::kind) {
        Some(Kind::Kernel) => all.kern = Word::from_bits(function.real),
        _ => all.func = Word::from_bits(function.real),
    }
    Ok(all)
}

fn memset(call: &mut Call<'_>) -> Result<CUDA_MEMSET_NODE_PARAMS_v2, Stop> {
    let ctx = context(call)?;
    let (dst, pitch): (u64, usize) = (call.message.plain()?, call.message.plain()?);
    let (value, elementSize): (u32, u32) = (call.message.plain()?, call.message.plain()?);
    let (width, height): (usize, usize) = (call.message.plain()?, call.message.plain()?);
    let row = (width as u64).saturating_mul(u64::from(elementSize));
    call.rows_within(dst, height as u64, pitch as u64, row)?;
    Ok(CUDA_MEMSET_NODE_PARAMS_v2 {
        dst,
        pitch,
        value,
        elementSize,
        width,
        height,
        ctx,
    })
}

/// Adds a node: its name, the graph, the nodes before it, what is said of those edges, then the node.
pub fn add(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let made = call.made(Kind::GraphNode)?;
    let graph = call.handle(Kind::Graph)?;
    let before = call.handles(Kind::GraphNode)?;
    let edges = call.inputs(size_of::<CUgraphEdgeData>())?;
    let count = before.bytes() / 8;
    if edges.is_present() {
        call.must_have(edges, count as u64, size_of::<CUgraphEdgeData>())?;
    }
    let mut params = params(call)?;
    let base = call.arena.base();
    // SAFETY: the graph and the nodes are the driver's; the parameters were checked, and what they point to lies in the
    // arena; the driver writes one handle there.
    let code = unsafe {
        let (node, graph) = (made.spot.pointer(base), Word::from_bits(graph.real));
        let before = before.pointer::<CUgraphNode>(base);
        match edges.is_present() {
            true => {
                let edges = edges.pointer::<CUgraphEdgeData>(base);
                (call.driver.cuGraphAddNode_v2)(node, graph, before, edges, count, &raw mut params)
            }
            false => (call.driver.cuGraphAddNode)(node, graph, before, count, &raw mut params),
        }
    };
    if code != CUDA_SUCCESS {
        return Ok(code);
    }
    let mut address = 0;
    if params.type_ == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
        // SAFETY: this member was filled in, and the driver has written to it.
        let (at, bytes) = unsafe { (params.anonymous1.alloc.dptr, params.anonymous1.alloc.bytesize) };
        address = at;
        call.server.tables().ranges.insert(at, bytes as u64, graph.id());
    }
    call.enter(made, graph.id());
    call.answer.plain(address);
    Ok(CUDA_SUCCESS)
}

/// Changes a node's parameters: the node, then the parameters.
pub fn set(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let node = call.handle(Kind::GraphNode)?;
    let mut params = params(call)?;
    keep_context(call, node, &mut params);
    // SAFETY: the node is the driver's, and the parameters were checked.
    Ok(unsafe { (call.driver.cuGraphNodeSetParams)(Word::from_bits(node.real), &raw mut params) })
}

/// Changes a node's parameters in an executable graph: the graph, the node, then the parameters.
pub fn set_in_exec(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let exec = call.handle(Kind::GraphExec)?;
    let node = call.handle(Kind::GraphNode)?;
    let mut params = params(call)?;
    keep_context(call, node, &mut params);
    let (exec, node) = (Word::from_bits(exec.real), Word::from_bits(node.real));
    // SAFETY: the graph and the node are the driver's, and the parameters were checked.
    Ok(unsafe { (call.driver.cuGraphExecNodeSetParams)(exec, node, &raw mut params) })
}

/// Where the program names no context, a copy or a fill stays in its own.
fn keep_context(call: &Call<'_>, node: Used, params: &mut CUgraphNodeParams) {
    let mut old = CUgraphNodeParams::default();
    // SAFETY: the node is the driver's, and it writes one structure to memory of ours.
    let code = unsafe { (call.driver.cuGraphNodeGetParams)(Word::from_bits(node.real), &raw mut old) };
    if code != CUDA_SUCCESS || old.type_ != params.type_ {
        return;
    }
    // SAFETY: the types say which member is filled in, of both.
    unsafe {
        match params.type_ {
            CU_GRAPH_NODE_TYPE_MEMCPY if params.anonymous1.memcpy.copyCtx.is_null() => {
                params.anonymous1.memcpy.copyCtx = old.anonymous1.memcpy.copyCtx;
            }
            CU_GRAPH_NODE_TYPE_MEMSET if params.anonymous1.memset.ctx.is_null() => {
                params.anonymous1.memset.ctx = old.anonymous1.memset.ctx;
            }
            _ => {}
        }
    }
}

/// A node's parameters: the node, and the type that it has to have.
pub fn get(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let node = call.handle(Kind::GraphNode)?;
    let sort = CUgraphNodeType(call.message.plain()?);
    call.message.end()?;
    let node = Word::from_bits(node.real);
    match sort {
        CU_GRAPH_NODE_TYPE_KERNEL => get_kernel(call, node),
        CU_GRAPH_NODE_TYPE_MEMSET => {
            let mut p = CUDA_MEMSET_NODE_PARAMS::default();
            // SAFETY: the node is the driver's, and it writes one structure to memory of ours.
            let code = unsafe { (call.driver.cuGraphMemsetNodeGetParams)(node, &raw mut p) };
            call.answer.plain(p.dst);
            call.answer.plain(p.pitch);
            call.answer.plain(p.value);
            call.answer.plain(p.elementSize);
            call.answer.plain(p.width);
            call.answer.plain(p.height);
            Ok(code)
        }
        CU_GRAPH_NODE_TYPE_HOST => {
            let mut p = CUDA_HOST_NODE_PARAMS::default();
            // SAFETY: as above.
            let code = unsafe { (call.driver.cuGraphHostNodeGetParams)(node, &raw mut p) };
            let (function, data) = call.of_host_node(p.fn_, p.userData).unwrap_or_default();
            call.answer.plain(function);
            call.answer.plain(data);
            Ok(code)
        }
        _ => Ok(CUDA_ERROR_NOT_SUPPORTED),
    }
}

fn get_kernel(call: &mut Call<'_>, node: CUgraphNode) -> Result<CUresult, Stop> {
    let mut p = CUDA_KERNEL_NODE_PARAMS::default();
    // SAFETY: as above.
    let code = unsafe { (call.driver.cuGraphKernelNodeGetParams_v2)(node, &raw mut p) };
    if code != CUDA_SUCCESS {
        return Ok(code);
    }
    let mut names = [0; 3];
    {
        let mut tables = call.server.tables();
        let objects = [
            (Kind::Function, p.func.bits()),
            (Kind::Kernel, p.kern.bits()),
            (Kind::Context, p.ctx.bits()),
        ];
        for (name, (kind, real)) in names.iter_mut().zip(objects) {
            let found = tables.objects.found(kind, real, None);
            *name = found.ok_or(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        }
    }
    for name in names {
        call.answer.plain(name);
    }
    for number in [
        p.gridDimX,
        p.gridDimY,
        p.gridDimZ,
        p.blockDimX,
        p.blockDimY,
        p.blockDimZ,
        p.sharedMemBytes,
    ] {
        call.answer.plain(number);
    }
    let function = if names[0] == 0 { names[1] } else { names[0] };
    let real = call.real(Kind::Function, function)?;
    let layout = launch::of(call, Used::new(function, real))?;
    let mut values = vec![0_u8; layout.bytes()];
    for (at, (offset, size)) in layout.0.iter().enumerate() {
        let (offset, size) = (*offset as usize, *size as usize);
        // SAFETY: the driver's list has a pointer for each parameter of the kernel, to a value of its size.
        unsafe {
            let value = p.kernelParams.add(at).read();
            std::ptr::copy_nonoverlapping(value.cast(), values[offset..offset + size].as_mut_ptr(), size);
        }
    }
    call.answer.bytes(&values);
    Ok(CUDA_SUCCESS)
}

/// Makes an executable graph: flags, its name, the graph, flags of CUDA, a stream. The answer is told on a failure too:
/// the result, and the node that it is about.
pub fn instantiate(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let made = call.made(Kind::GraphExec)?;
    let graph = call.handle(Kind::Graph)?;
    let mut p = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: call.message.plain()?,
        hUploadStream: Word::from_bits(call.handle(Kind::Stream)?.real),
        ..CUDA_GRAPH_INSTANTIATE_PARAMS::default()
    };
    call.message.end()?;
    let to = made.spot.pointer(call.arena.base());
    let real = Word::from_bits(graph.real);
    // SAFETY: the graph and the stream are the driver's; it writes one handle to the arena.
    let code = unsafe {
        match flags {
            0 => (call.driver.cuGraphInstantiateWithParams)(to, real, &raw mut p),
            PER_THREAD => (call.driver.cuGraphInstantiateWithParams_ptsz)(to, real, &raw mut p),
            _ => return Err(Stop::Malformed),
        }
    };
    if code == CUDA_SUCCESS {
        call.enter(made, None);
    }
    let node = found_node(call, p.hErrNode_out, graph.id())?;
    call.answer.plain(p.result_out.0);
    call.answer.plain(node);
    Ok(code)
}

/// Updates an executable graph from a graph. The answer is told on a failure too: the result, and two nodes.
pub fn update(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let exec = call.handle(Kind::GraphExec)?;
    let graph = call.handle(Kind::Graph)?;
    call.message.end()?;
    let mut info = CUgraphExecUpdateResultInfo::default();
    let (to, from) = (Word::from_bits(exec.real), Word::from_bits(graph.real));
    // SAFETY: both graphs are the driver's; it writes one structure to memory of ours.
    let code = unsafe { (call.driver.cuGraphExecUpdate_v2)(to, from, &raw mut info) };
    let nodes = [
        found_node(call, info.errorNode, graph.id())?,
        found_node(call, info.errorFromNode, graph.id())?,
    ];
    call.answer.plain(info.result.0);
    for node in nodes {
        call.answer.plain(node);
    }
    Ok(code)
}

fn found_node(call: &Call<'_>, node: CUgraphNode, graph: Option<Id>) -> Result<u64, Stop> {
    let found = call
        .server
        .tables()
        .objects
        .found(Kind::GraphNode, node.bits(), graph);
    found.ok_or(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY))
}
