//! Captures: the gate records where captures go on, and does not disturb them.
#![allow(non_snake_case)]

use divvy_abi::{CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode, guard};

use crate::below::forward;
use crate::gate::{self, Stream};

macro_rules! captures {
    ($($name:ident($($argument:ident: $of:ty),*), $per_thread:literal, $how:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(stream: CUstream $(, $argument: $of)*) -> CUresult {
            guard(|| gate::$how(
                Stream { handle: stream, per_thread: $per_thread },
                // SAFETY: the arguments are handed on as they came.
                || unsafe { forward::$name(stream $(, $argument)*) },
            ))
        })*
    };
}

captures! {
    cuStreamBeginCapture(), false, capturing;
    cuStreamBeginCapture_ptsz(), true, capturing;
    cuStreamBeginCapture_v2(mode: CUstreamCaptureMode), false, capturing;
    cuStreamBeginCapture_v2_ptsz(mode: CUstreamCaptureMode), true, capturing;
    cuStreamBeginCaptureToGraph(graph: CUgraph, nodes: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode), false, capturing;
    cuStreamBeginCaptureToGraph_ptsz(graph: CUgraph, nodes: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode), true, capturing;
    cuStreamEndCapture(graph: *mut CUgraph), false, captured;
    cuStreamEndCapture_ptsz(graph: *mut CUgraph), true, captured;
}
