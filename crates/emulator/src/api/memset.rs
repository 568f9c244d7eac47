//! Filling device memory.

use super::capture::unsafe_call;
use super::stream_name::StreamName;
use crate::Result;
use crate::copy::{Fill, Known, Value};
use crate::graph::capture::Target;
use crate::graph::work::{MemsetWork, Work};
use divvy_abi::*;
use divvy_device::product::spec::Timing;
use std::sync::Arc;

entry! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(pointer: u64, value: u8, count: usize => stream) {
        now(stream, pointer, 0, Value::U8(value), count as u64, 1)
    }

    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(pointer: u64, value: u16, count: usize => stream) {
        now(stream, pointer, 0, Value::U16(value), count as u64, 1)
    }

    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(pointer: u64, value: u32, count: usize => stream) {
        now(stream, pointer, 0, Value::U32(value), count as u64, 1)
    }

    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(
        pointer: u64, pitch: usize, value: u8, width: usize, height: usize => stream
    ) {
        now(stream, pointer, pitch as u64, Value::U8(value), width as u64, height as u64)
    }

    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(
        pointer: u64, pitch: usize, value: u16, width: usize, height: usize => stream
    ) {
        now(stream, pointer, pitch as u64, Value::U16(value), width as u64, height as u64)
    }

    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(
        pointer: u64, pitch: usize, value: u32, width: usize, height: usize => stream
    ) {
        now(stream, pointer, pitch as u64, Value::U32(value), width as u64, height as u64)
    }

    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(pointer: u64, value: u8, count: usize ; stream) {
        later(stream, pointer, 0, Value::U8(value), count as u64, 1)
    }

    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(pointer: u64, value: u16, count: usize ; stream) {
        later(stream, pointer, 0, Value::U16(value), count as u64, 1)
    }

    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(pointer: u64, value: u32, count: usize ; stream) {
        later(stream, pointer, 0, Value::U32(value), count as u64, 1)
    }

    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        pointer: u64, pitch: usize, value: u8, width: usize, height: usize ; stream
    ) {
        later(stream, pointer, pitch as u64, Value::U8(value), width as u64, height as u64)
    }

    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        pointer: u64, pitch: usize, value: u16, width: usize, height: usize ; stream
    ) {
        later(stream, pointer, pitch as u64, Value::U16(value), width as u64, height as u64)
    }

    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        pointer: u64, pitch: usize, value: u32, width: usize, height: usize ; stream
    ) {
        later(stream, pointer, pitch as u64, Value::U32(value), width as u64, height as u64)
    }
}

/// Fills and waits.
fn now(stream: StreamName, address: u64, pitch: u64, value: Value, count: u64, rows: u64) -> Result {
    unsafe_call()?;
    let queue = stream.queue()?;
    let known = Known::Live(&queue.context.addresses);
    match Fill::check(address, pitch, value, count, rows, known)? {
        Some(fill) => {
            let facts = queue.context.device.facts;
            if facts.timing == Timing::Free {
                return queue.run_now(|| fill.run(&facts)).map(drop);
            }
            queue.run_on_engine(move |_| fill.run(&facts)).wait_done();
            queue.context.printed.show();
            queue.context.check()
        }
        None => Ok(()),
    }
}

/// Fills in stream order.
fn later(stream: StreamName, address: u64, pitch: u64, value: Value, count: u64, rows: u64) -> Result {
    match stream.target()? {
        Target::Queue(queue) => {
            let known = Known::Live(&queue.context.addresses);
            if let Some(fill) = Fill::check(address, pitch, value, count, rows, known)? {
                let facts = queue.context.device.facts;
                queue.run_on_engine(move |_| fill.run(&facts));
            }
            Ok(())
        }
        Target::Capture(recorder) => {
            let known = Known::Reserved(&recorder.queue.context.addresses);
            if Fill::check(address, pitch, value, count, rows, known)?.is_none() {
                return Ok(());
            }
            let fill = CUDA_MEMSET_NODE_PARAMS {
                dst: address,
                pitch: pitch as usize,
                value: value.number(),
                elementSize: value.bytes() as u32,
                width: count as usize,
                height: rows as usize,
            };
            let context = Arc::clone(&recorder.queue.context);
            recorder.add(Work::Memset(MemsetWork { fill, context })).map(drop)
        }
    }
}
