//! Filling device memory.

use crate::copy::{Value, memset};

entry! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(pointer: u64, value: u8, count: usize => stream) {
        memset(&stream.queue()?, true, pointer, 0, Value::U8(value), count as u64, 1)
    }

    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(pointer: u64, value: u16, count: usize => stream) {
        memset(&stream.queue()?, true, pointer, 0, Value::U16(value), count as u64, 1)
    }

    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(pointer: u64, value: u32, count: usize => stream) {
        memset(&stream.queue()?, true, pointer, 0, Value::U32(value), count as u64, 1)
    }

    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(
        pointer: u64, pitch: usize, value: u8, width: usize, height: usize => stream
    ) {
        memset(&stream.queue()?, true, pointer, pitch as u64, Value::U8(value), width as u64, height as u64)
    }

    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(
        pointer: u64, pitch: usize, value: u16, width: usize, height: usize => stream
    ) {
        memset(&stream.queue()?, true, pointer, pitch as u64, Value::U16(value), width as u64, height as u64)
    }

    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(
        pointer: u64, pitch: usize, value: u32, width: usize, height: usize => stream
    ) {
        memset(&stream.queue()?, true, pointer, pitch as u64, Value::U32(value), width as u64, height as u64)
    }

    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(pointer: u64, value: u8, count: usize ; stream) {
        memset(&stream.queue()?, false, pointer, 0, Value::U8(value), count as u64, 1)
    }

    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(pointer: u64, value: u16, count: usize ; stream) {
        memset(&stream.queue()?, false, pointer, 0, Value::U16(value), count as u64, 1)
    }

    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(pointer: u64, value: u32, count: usize ; stream) {
        memset(&stream.queue()?, false, pointer, 0, Value::U32(value), count as u64, 1)
    }

    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        pointer: u64, pitch: usize, value: u8, width: usize, height: usize ; stream
    ) {
        memset(&stream.queue()?, false, pointer, pitch as u64, Value::U8(value), width as u64, height as u64)
    }

    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        pointer: u64, pitch: usize, value: u16, width: usize, height: usize ; stream
    ) {
        memset(&stream.queue()?, false, pointer, pitch as u64, Value::U16(value), width as u64, height as u64)
    }

    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        pointer: u64, pitch: usize, value: u32, width: usize, height: usize ; stream
    ) {
        memset(&stream.queue()?, false, pointer, pitch as u64, Value::U32(value), width as u64, height as u64)
    }
}
