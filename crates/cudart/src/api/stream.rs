//! Streams, and capturing them into graphs.

use core::ffi::c_void;
use core::ptr::null_mut;

use crate::prelude::*;

entry! {
    cudaStreamCreate(pStream: *mut cudaStream_t) {
        refuse(pStream.is_null(), cudaErrorInvalidValue)?;
        context()?;
        cu!(cuStreamCreate(pStream, 0));
        Ok(())
    }

    cudaStreamCreateWithFlags(pStream: *mut cudaStream_t, flags: u32) {
        refuse(pStream.is_null(), cudaErrorInvalidValue)?;
        context()?;
        cu!(cuStreamCreate(pStream, flags));
        Ok(())
    }

    cudaStreamCreateWithPriority(pStream: *mut cudaStream_t, flags: u32, priority: i32) {
        refuse(pStream.is_null(), cudaErrorInvalidValue)?;
        context()?;
        cu!(cuStreamCreateWithPriority(pStream, flags, priority));
        Ok(())
    }

    cudaStreamDestroy(stream: cudaStream_t) {
        refuse(stream.is_null(), cudaErrorInvalidResourceHandle)?;
        context()?;
        cu!(cuStreamDestroy_v2(stream));
        Ok(())
    }

    cudaStreamSynchronize | cudaStreamSynchronize_ptsz by stream (stream: cudaStream_t) {
        context()?;
        cu!(cuStreamSynchronize(stream));
        Ok(())
    }

    cudaStreamQuery | cudaStreamQuery_ptsz by stream (stream: cudaStream_t) {
        context()?;
        cu!(cuStreamQuery(stream));
        Ok(())
    }

    cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz by stream (stream: cudaStream_t, event: cudaEvent_t, flags: u32) {
        refuse(event.is_null(), cudaErrorInvalidResourceHandle)?;
        context()?;
        cu!(cuStreamWaitEvent(stream, event, flags));
        Ok(())
    }

    cudaStreamAddCallback | cudaStreamAddCallback_ptsz by stream (
        stream: cudaStream_t, callback: cudaStreamCallback_t, userData: *mut c_void, flags: u32,
    ) {
        context()?;
        // The two codes are one number, and their types are laid out as that.
        let callback = core::mem::transmute::<cudaStreamCallback_t, CUstreamCallback>(callback);
        cu!(cuStreamAddCallback(stream, callback, userData, flags));
        Ok(())
    }

    cudaStreamGetPriority | cudaStreamGetPriority_ptsz by hStream (hStream: cudaStream_t, priority: *mut i32) {
        context()?;
        cu!(cuStreamGetPriority(hStream, priority));
        Ok(())
    }

    cudaStreamGetFlags | cudaStreamGetFlags_ptsz by hStream (hStream: cudaStream_t, flags: *mut u32) {
        context()?;
        cu!(cuStreamGetFlags(hStream, flags));
        Ok(())
    }

    cudaStreamGetId | cudaStreamGetId_ptsz by hStream (hStream: cudaStream_t, streamId: *mut u64) {
        context()?;
        cu!(cuStreamGetId(hStream, streamId));
        Ok(())
    }

    cudaStreamGetDevice | cudaStreamGetDevice_ptsz by hStream (hStream: cudaStream_t, device: *mut i32) {
        context()?;
        cu!(cuStreamGetDevice(hStream, device));
        Ok(())
    }

    cudaStreamGetAttribute | cudaStreamGetAttribute_ptsz by stream (
        stream: cudaStream_t, attr: cudaLaunchAttributeID, value: *mut cudaLaunchAttributeValue,
    ) {
        context()?;
        cu!(cuStreamGetAttribute(stream, CUlaunchAttributeID(attr.0), value.cast()));
        Ok(())
    }

    cudaStreamSetAttribute | cudaStreamSetAttribute_ptsz by stream (
        stream: cudaStream_t, attr: cudaLaunchAttributeID, param: *const cudaLaunchAttributeValue,
    ) {
        context()?;
        cu!(cuStreamSetAttribute(stream, CUlaunchAttributeID(attr.0), param.cast()));
        Ok(())
    }

    cudaStreamCopyAttributes | cudaStreamCopyAttributes_ptsz by dst (dst: cudaStream_t, src: cudaStream_t) {
        context()?;
        cu!(cuStreamCopyAttributes(dst, src));
        Ok(())
    }

    cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz by stream (
        stream: cudaStream_t, devPtr: *mut c_void, length: usize, flags: u32,
    ) {
        context()?;
        cu!(cuStreamAttachMemAsync(stream, devPtr as CUdeviceptr, length, flags));
        Ok(())
    }

    cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz by stream (stream: cudaStream_t, mode: cudaStreamCaptureMode) {
        context()?;
        cu!(cuStreamBeginCapture_v2(stream, CUstreamCaptureMode(mode.0)));
        Ok(())
    }

    cudaStreamBeginCaptureToGraph | cudaStreamBeginCaptureToGraph_ptsz by stream (
        stream: cudaStream_t, graph: cudaGraph_t, dependencies: *const cudaGraphNode_t,
        dependencyData: *const cudaGraphEdgeData, numDependencies: usize, mode: cudaStreamCaptureMode,
    ) {
        context()?;
        cu!(cuStreamBeginCaptureToGraph(
            stream, graph, dependencies, dependencyData.cast(), numDependencies, CUstreamCaptureMode(mode.0)
        ));
        Ok(())
    }

    cudaStreamEndCapture | cudaStreamEndCapture_ptsz by stream (stream: cudaStream_t, pGraph: *mut cudaGraph_t) {
        context()?;
        cu!(cuStreamEndCapture(stream, pGraph));
        Ok(())
    }

    cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz by stream (
        stream: cudaStream_t, pCaptureStatus: *mut cudaStreamCaptureStatus,
    ) {
        context()?;
        cu!(cuStreamIsCapturing(stream, pCaptureStatus.cast()));
        Ok(())
    }

    cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz by stream (
        stream: cudaStream_t, captureStatus_out: *mut cudaStreamCaptureStatus, id_out: *mut u64,
        graph_out: *mut cudaGraph_t, dependencies_out: *mut *const cudaGraphNode_t,
        edgeData_out: *mut *const cudaGraphEdgeData, numDependencies_out: *mut usize,
    ) {
        context()?;
        cu!(cuStreamGetCaptureInfo_v3(
            stream, captureStatus_out.cast(), id_out, graph_out, dependencies_out, edgeData_out.cast(),
            numDependencies_out
        ));
        Ok(())
    }

    cudaStreamGetCaptureInfo_12 | cudaStreamGetCaptureInfo_12_ptsz by stream (
        stream: cudaStream_t, captureStatus_out: *mut cudaStreamCaptureStatus, id_out: *mut u64,
    ) {
        context()?;
        cu!(cuStreamGetCaptureInfo_v3(
            stream, captureStatus_out.cast(), id_out, null_mut(), null_mut(), null_mut(), null_mut()
        ));
        Ok(())
    }

    cudaStreamGetCaptureInfo_v2 | cudaStreamGetCaptureInfo_v2_ptsz by stream (
        stream: cudaStream_t, captureStatus_out: *mut cudaStreamCaptureStatus, id_out: *mut u64,
        graph_out: *mut cudaGraph_t, dependencies_out: *mut *const cudaGraphNode_t, numDependencies_out: *mut usize,
    ) {
        context()?;
        cu!(cuStreamGetCaptureInfo_v2(
            stream, captureStatus_out.cast(), id_out, graph_out, dependencies_out, numDependencies_out
        ));
        Ok(())
    }

    cudaStreamUpdateCaptureDependencies | cudaStreamUpdateCaptureDependencies_ptsz by stream (
        stream: cudaStream_t, dependencies: *mut cudaGraphNode_t, dependencyData: *const cudaGraphEdgeData,
        numDependencies: usize, flags: u32,
    ) {
        context()?;
        cu!(cuStreamUpdateCaptureDependencies_v2(
            stream, dependencies, dependencyData.cast(), numDependencies, flags
        ));
        Ok(())
    }

    cudaStreamUpdateCaptureDependencies_12 | cudaStreamUpdateCaptureDependencies_12_ptsz by stream (
        stream: cudaStream_t, dependencies: *mut cudaGraphNode_t, numDependencies: usize, flags: u32,
    ) {
        context()?;
        cu!(cuStreamUpdateCaptureDependencies(stream, dependencies, numDependencies, flags));
        Ok(())
    }

    cudaThreadExchangeStreamCaptureMode(mode: *mut cudaStreamCaptureMode) {
        cu!(cuThreadExchangeStreamCaptureMode(mode.cast()));
        Ok(())
    }
}
