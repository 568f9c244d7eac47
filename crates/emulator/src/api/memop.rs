//! Stream memory operations.

use super::args::InMut;
use super::stream_name::{StreamName, stream_of};
use crate::Result;
use crate::driver::driver;
use crate::graph::capture::Target;
use crate::graph::work::{MemOpsWork, Work};
use crate::memop::{self, MemOps};
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuStreamWaitValue32 | cuStreamWaitValue32_ptsz(stream ; address: u64, value: u32, flags: u32) {
        put(stream, vec![wait(CU_STREAM_MEM_OP_WAIT_VALUE_32, address, u64::from(value), flags)])
    }

    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(stream ; address: u64, value: u32, flags: u32) {
        put(stream, vec![wait(CU_STREAM_MEM_OP_WAIT_VALUE_32, address, u64::from(value), flags)])
    }

    fn cuStreamWaitValue64 | cuStreamWaitValue64_ptsz(stream ; address: u64, value: u64, flags: u32) {
        put(stream, vec![wait(CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags)])
    }

    fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(stream ; address: u64, value: u64, flags: u32) {
        put(stream, vec![wait(CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags)])
    }

    fn cuStreamWriteValue32 | cuStreamWriteValue32_ptsz(stream ; address: u64, value: u32, flags: u32) {
        put(stream, vec![write(CU_STREAM_MEM_OP_WRITE_VALUE_32, address, u64::from(value), flags)])
    }

    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(stream ; address: u64, value: u32, flags: u32) {
        put(stream, vec![write(CU_STREAM_MEM_OP_WRITE_VALUE_32, address, u64::from(value), flags)])
    }

    fn cuStreamWriteValue64 | cuStreamWriteValue64_ptsz(stream ; address: u64, value: u64, flags: u32) {
        put(stream, vec![write(CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags)])
    }

    fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(stream ; address: u64, value: u64, flags: u32) {
        put(stream, vec![write(CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags)])
    }

    fn cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz(
        stream ; count: u32, list: InMut<CUstreamBatchMemOpParams>, flags: u32
    ) {
        batch(stream, count, &list, flags)
    }

    fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz(
        stream ; count: u32, list: InMut<CUstreamBatchMemOpParams>, flags: u32
    ) {
        batch(stream, count, &list, flags)
    }
}

fn wait(
    operation: CUstreamBatchMemOpType,
    address: u64,
    value64: u64,
    flags: u32,
) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        waitValue: CUstreamMemOpWaitValueParams_st {
            operation,
            address,
            anonymous1: CUstreamMemOpWaitValueParams_st_anonymous1 { value64 },
            flags,
            alias: 0,
        },
    }
}

fn write(
    operation: CUstreamBatchMemOpType,
    address: u64,
    value64: u64,
    flags: u32,
) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        writeValue: CUstreamMemOpWriteValueParams_st {
            operation,
            address,
            anonymous1: CUstreamMemOpWriteValueParams_st_anonymous1 { value64 },
            flags,
            alias: 0,
        },
    }
}

fn batch(stream: StreamName, count: u32, list: &InMut<CUstreamBatchMemOpParams>, flags: u32) -> Result {
    if flags != 0 || count == 0 || count >= memop::TOO_MANY {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    put(stream, list.read().list(count as usize)?)
}

fn put(stream: StreamName, list: Vec<CUstreamBatchMemOpParams>) -> Result {
    let target = stream.target()?;
    let ops = MemOps::read(&driver()?.addresses, list)?;
    match target {
        Target::Capture(recorder) => {
            let context = Arc::clone(&recorder.queue.context);
            recorder
                .add(Work::MemOps(MemOpsWork {
                    ops,
                    flags: 0,
                    context,
                }))
                .map(drop)
        }
        Target::Queue(queue) => {
            let alive = stream_of(&queue)?;
            queue.submit_behind(|before| memop::submit(&ops, &queue.context, alive, before));
            Ok(())
        }
    }
}
