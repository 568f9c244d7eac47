//! A program that copies to its device and back, over cudarc: `transfers pageable|pinned BYTES [CALLS]`. It prints one JSON
//! object: whether all bytes came back, and what one of CALLS empty calls took. It knows nothing of Divvy.

use std::time::Instant;

use anyhow::{Context, bail};
use cudarc::driver::{CudaContext, result};
use serde_json::json;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let kind = words.next().context("pageable or pinned?")?;
    let bytes: usize = words.next().context("How many bytes?")?.parse()?;
    let calls: u32 = words.next().map_or(Ok(0), |count| count.parse())?;
    let context = CudaContext::new(0).context("Cannot open CUDA device 0")?;
    let stream = context.default_stream();
    let there = stream.alloc_zeros::<u8>(bytes)?;
    let pattern = |at: usize| (at * 7 + at / 251) as u8;
    let mut own;
    let memory: &mut [u8] = match kind.as_str() {
        "pageable" => {
            own = vec![0; bytes];
            &mut own
        }
        "pinned" => {
            // SAFETY: the context is current, and the memory is as long as was asked for. It stays until the program ends.
            unsafe {
                let first = result::malloc_host(bytes, 0)?;
                std::slice::from_raw_parts_mut(first.cast(), bytes)
            }
        }
        other => bail!("{other} is neither pageable nor pinned"),
    };
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = pattern(at);
    }
    stream.synchronize()?;
    let (first, _alive) = cudarc::driver::DevicePtr::device_ptr(&there, &stream);
    // SAFETY: the device's memory has as many bytes, and is this program's own.
    unsafe {
        result::memcpy_htod_sync(first, memory)?;
        memory.fill(0);
        result::memcpy_dtoh_sync(memory, first)?;
    }
    let right = memory.iter().enumerate().all(|(at, byte)| *byte == pattern(at));
    let began = Instant::now();
    for _ in 0..calls {
        context.mem_get_info()?;
    }
    let nanoseconds = began.elapsed().as_nanos() / u128::from(calls.max(1));
    println!(
        "{}",
        json!({ "kind": kind, "right": right, "call_ns": nanoseconds as u64 })
    );
    Ok(())
}
