//! Strings and lists that the driver below owns: a message has a copy.

use core::ffi::CStr;

use divvy_abi::*;

use super::{Call, Stop};
use crate::handle::{Id, Kind, Word};
use crate::wire::by_hand::PER_THREAD;

/// The name of a function or a kernel.
pub fn name(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let function = call.handle(Kind::Function)?;
    call.message.end()?;
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the handle is the driver's, and it writes one address to memory of ours.
    let code = unsafe {
        match function.id().map(Id::kind) {
            Some(Kind::Kernel) => {
                (call.driver.cuKernelGetName)(&raw mut text, Word::from_bits(function.real))
            }
            _ => (call.driver.cuFuncGetName)(&raw mut text, Word::from_bits(function.real)),
        }
    };
    if code == CUDA_SUCCESS && !text.is_null() {
        // SAFETY: the driver's string, which ends with a zero and stays as long as the function.
        call.answer.bytes(unsafe { CStr::from_ptr(text) }.to_bytes());
    }
    Ok(code)
}

/// What a stream captures: flags, the stream, and whether what is said of edges is wanted. The answer is the status, the
/// capture's number, the graph, the nodes that the next one follows, and a count of edges with their data.
pub fn capture(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let with_edges = call.message.flag()?;
    call.message.end()?;
    // Nothing ends the capture until this call is over.
    call.hold_graphs(Kind::Graph);
    let own = stream.id().or_else(|| call.current());
    let (driver, stream) = (call.driver, Word::from_bits(stream.real));
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut count) = (0, 0);
    let mut graph: CUgraph = std::ptr::null_mut();
    let (mut nodes, mut edges): (*const CUgraphNode, *const CUgraphEdgeData) =
        (std::ptr::null(), std::ptr::null());
    let (to_status, to_id, to_graph) = (&raw mut status, &raw mut id, &raw mut graph);
    let (to_nodes, to_count) = (&raw mut nodes, &raw mut count);
    // SAFETY: the stream is the driver's, and what it writes goes to memory of ours.
    let code = unsafe {
        match (with_edges, flags) {
            (false, 0) => {
                (driver.cuStreamGetCaptureInfo_v2)(stream, to_status, to_id, to_graph, to_nodes, to_count)
            }
            (false, PER_THREAD) => (driver.cuStreamGetCaptureInfo_v2_ptsz)(
                stream, to_status, to_id, to_graph, to_nodes, to_count,
            ),
            (true, 0) => (driver.cuStreamGetCaptureInfo_v3)(
                stream,
                to_status,
                to_id,
                to_graph,
                to_nodes,
                &raw mut edges,
                to_count,
            ),
            (true, PER_THREAD) => (driver.cuStreamGetCaptureInfo_v3_ptsz)(
                stream,
                to_status,
                to_id,
                to_graph,
                to_nodes,
                &raw mut edges,
                to_count,
            ),
            _ => return Err(Stop::Malformed),
        }
    };
    if code != CUDA_SUCCESS {
        return Ok(code);
    }
    let active = status == CU_STREAM_CAPTURE_STATUS_ACTIVE && !graph.is_null();
    let count = if active && !nodes.is_null() { count } else { 0 };
    call.answer.plain(status.0);
    call.answer.plain(id);
    let mut tables = call.server.tables();
    let full = Stop::Code(CUDA_ERROR_OUT_OF_MEMORY);
    let graph = match active {
        true => {
            // The driver's until the capture ends, so it goes with the stream where that began.
            let known = tables.objects.id(Kind::Graph, graph.bits());
            let origin = tables.captures.origin(id).or(own);
            let found = tables.objects.found(Kind::Graph, graph.bits(), origin);
            let found = found.ok_or(full)?;
            if known.is_none() {
                tables.captures.has_graph(id, Id::from_bits(found));
            }
            found
        }
        false => 0,
    };
    call.answer.plain(graph);
    call.answer.count(Some(count));
    for at in 0..count {
        // SAFETY: the driver's list has so many nodes, until the capture goes on.
        let node = unsafe { nodes.add(at).read() };
        let node = tables
            .objects
            .found(Kind::GraphNode, node.bits(), Id::from_bits(graph));
        call.answer.plain(node.ok_or(full)?);
    }
    let edge_count = if edges.is_null() { 0 } else { count };
    call.answer.plain(edge_count as u32);
    for at in 0..edge_count {
        // SAFETY: as above.
        call.answer.plain(unsafe { edges.add(at).read() });
    }
    Ok(code)
}
