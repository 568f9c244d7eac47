//! Functions after which memory may have come back: a stream, an event or a context was waited for, or has ended.
#![allow(non_snake_case)]

use divvy_abi::{CUcontext, CUevent, CUresult, CUstream, guard};

use crate::below::forward;
use crate::charges::CHARGES;
use crate::gate::{self, Stream};

macro_rules! then_follow {
    ($($name:ident($($argument:ident: $of:ty)?) $(and $also:expr)?;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name($($argument: $of)?) -> CUresult {
            guard(|| {
                // SAFETY: the argument is handed on as it came.
                let result = unsafe { forward::$name($($argument)?) };
                if result.is_success() {
                    $($also;)?
                    CHARGES.follow();
                }
                result
            })
        })*
    };
}

then_follow! {
    cuStreamSynchronize(stream: CUstream);
    cuStreamSynchronize_ptsz(stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuCtxSynchronize() and CHARGES.context_synchronized();
    cuCtxSynchronize_v2(context: CUcontext);
}

macro_rules! stream_ends {
    ($($name:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(stream: CUstream) -> CUresult {
            guard(|| {
                // It runs before the call: afterwards the handle may already be another thread's new stream.
                CHARGES.stream_ends(stream as usize);
                gate::stream_ends(Stream { handle: stream, per_thread: false });
                // SAFETY: the argument is handed on as it came.
                unsafe { forward::$name(stream) }
            })
        })*
    };
}

stream_ends! {
    cuStreamDestroy;
    cuStreamDestroy_v2;
}
