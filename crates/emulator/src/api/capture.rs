//! Stream capture.

use super::args::{Handle, In, InMut, Out};
use super::find;
use super::graph::before;
use super::stream_name::StreamName;
use crate::Result;
use crate::driver::driver;
use crate::graph::capture::{self, Captures, Info};
use crate::stream::Queue;
use divvy_abi::*;

entry! {
    // The first version had one mode, which later became the global one.
    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz( ; stream) {
        begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)
    }

    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(stream ; mode: CUstreamCaptureMode) {
        begin(stream, mode)
    }

    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz(
        stream ; graph: Handle<CUgraph>, nodes: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize,
        mode: CUstreamCaptureMode
    ) {
        let into = (find::graph(graph.0)?, before(&nodes, Some(&data), count)?);
        let queue = queue(stream)?;
        captures()?.begin(&queue, mode, Some(into))
    }

    fn cuStreamEndCapture | cuStreamEndCapture_ptsz(stream ; graph: Out<CUgraph>) {
        graph.required()?;
        let ended = captures()?.end(&stream.queue_even_failed()?);
        graph.set(ended.as_ref().map_or(0, |ended| ended.handle) as CUgraph)?;
        ended.map(drop)
    }

    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(stream ; status: Out<CUstreamCaptureStatus>) {
        let info = captures()?.info(&queue(stream)?)?;
        status.set(info.map_or(CU_STREAM_CAPTURE_STATUS_NONE, |info| info.status))
    }

    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(
        stream ; status: Out<CUstreamCaptureStatus>, id: Out<u64>
    ) {
        status.required()?;
        if let Some(info) = head(stream, &status)? {
            id.set_if_wanted(info.id);
        }
        Ok(())
    }

    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        stream ; status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        nodes: Out<*const CUgraphNode>, count: Out<usize>
    ) {
        status.required()?;
        let Some(info) = head(stream, &status)? else { return Ok(()) };
        if info.annotated && !nodes.is_null() {
            return Err(CUDA_ERROR_LOSSY_QUERY);
        }
        id.set_if_wanted(info.id);
        graph.set_if_wanted(info.graph as CUgraph);
        nodes.set_if_wanted(info.nodes);
        count.set_if_wanted(info.count);
        Ok(())
    }

    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        stream ; status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        nodes: Out<*const CUgraphNode>, edges: Out<*const CUgraphEdgeData>, count: Out<usize>
    ) {
        status.required()?;
        if nodes.is_null() && !edges.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let Some(info) = head(stream, &status)? else { return Ok(()) };
        if info.annotated && !nodes.is_null() && edges.is_null() {
            return Err(CUDA_ERROR_LOSSY_QUERY);
        }
        id.set_if_wanted(info.id);
        graph.set_if_wanted(info.graph as CUgraph);
        nodes.set_if_wanted(info.nodes);
        edges.set_if_wanted(info.edges);
        count.set_if_wanted(info.count);
        Ok(())
    }

    fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz(
        stream ; nodes: InMut<CUgraphNode>, count: usize, flags: u32
    ) {
        update(stream, &nodes, None, count, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz(
        stream ; nodes: InMut<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize, flags: u32
    ) {
        update(stream, &nodes, Some(&data), count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) {
        let old = capture::exchange_mode(mode.before()?)?;
        mode.set(old)
    }
}

fn captures() -> Result<&'static Captures> {
    Ok(&driver()?.graphs.captures)
}

/// The stream itself: these calls are about its capture, so being captured is no obstacle.
fn queue(stream: StreamName) -> Result<Queue> {
    let queue = stream.queue_even_failed()?;
    queue.context.check()?;
    Ok(queue)
}

fn begin(stream: StreamName, mode: CUstreamCaptureMode) -> Result {
    let queue = queue(stream)?;
    captures()?.begin(&queue, mode, None)
}

/// Writes the status. The rest is written only for a capture that is valid.
fn head(stream: StreamName, status: &Out<CUstreamCaptureStatus>) -> Result<Option<Info>> {
    let info = captures()?.info(&queue(stream)?)?;
    status.set(
        info.as_ref()
            .map_or(CU_STREAM_CAPTURE_STATUS_NONE, |info| info.status),
    )?;
    Ok(info.filter(|info| info.status == CU_STREAM_CAPTURE_STATUS_ACTIVE))
}

fn update(
    stream: StreamName,
    nodes: &InMut<CUgraphNode>,
    data: Option<&In<CUgraphEdgeData>>,
    count: usize,
    flags: u32,
) -> Result {
    if flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES.0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let nodes = before(&nodes.read(), data, count)?;
    let queue = queue(stream)?;
    captures()?.update(&queue, nodes, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES.0)
}

/// Refuses a call that a capture would not see and that may be unsafe meanwhile.
pub fn unsafe_call() -> Result {
    captures()?.unsafe_call()
}
