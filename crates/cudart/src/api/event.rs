//! Events.

use crate::prelude::*;

entry! {
    cudaEventCreate(event: *mut cudaEvent_t) {
        refuse(event.is_null(), cudaErrorInvalidValue)?;
        context()?;
        cu!(cuEventCreate(event, 0));
        Ok(())
    }

    cudaEventCreateWithFlags(event: *mut cudaEvent_t, flags: u32) {
        refuse(event.is_null(), cudaErrorInvalidValue)?;
        context()?;
        cu!(cuEventCreate(event, flags));
        Ok(())
    }

    cudaEventDestroy(event: cudaEvent_t) {
        refuse(event.is_null(), cudaErrorInvalidResourceHandle)?;
        context()?;
        cu!(cuEventDestroy_v2(event));
        Ok(())
    }

    cudaEventElapsedTime(ms: *mut f32, start: cudaEvent_t, end: cudaEvent_t) {
        refuse(ms.is_null(), cudaErrorInvalidValue)?;
        refuse(start.is_null() || end.is_null(), cudaErrorInvalidResourceHandle)?;
        cu!(cuEventElapsedTime(ms, start, end));
        Ok(())
    }

    cudaEventElapsedTime_v2(ms: *mut f32, start: cudaEvent_t, end: cudaEvent_t) {
        refuse(ms.is_null(), cudaErrorInvalidValue)?;
        refuse(start.is_null() || end.is_null(), cudaErrorInvalidResourceHandle)?;
        cu!(cuEventElapsedTime(ms, start, end));
        Ok(())
    }

    cudaEventQuery(event: cudaEvent_t) {
        refuse(event.is_null(), cudaErrorInvalidResourceHandle)?;
        context()?;
        cu!(cuEventQuery(event));
        Ok(())
    }

    cudaEventSynchronize(event: cudaEvent_t) {
        refuse(event.is_null(), cudaErrorInvalidResourceHandle)?;
        context()?;
        cu!(cuEventSynchronize(event));
        Ok(())
    }

    cudaEventRecord | cudaEventRecord_ptsz by stream (event: cudaEvent_t, stream: cudaStream_t) {
        refuse(event.is_null(), cudaErrorInvalidResourceHandle)?;
        context()?;
        cu!(cuEventRecord(event, stream));
        Ok(())
    }

    cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz by stream (
        event: cudaEvent_t, stream: cudaStream_t, flags: u32,
    ) {
        refuse(event.is_null(), cudaErrorInvalidResourceHandle)?;
        context()?;
        cu!(cuEventRecordWithFlags(event, stream, flags));
        Ok(())
    }
}
