//! A tenant for the stories of compute: over cudarc it keeps its device busy with kernels of one length, some always
//! launched ahead, from its start until its standard input ends. It knows nothing of Divvy.
//!
//! Its one argument is the kernels' length in microseconds.

use std::io::{Read, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::Context;
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use serde_json::json;

/// One thread that reads the device's clock until so many nanoseconds are over.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
";

/// Kernels between two marks, and marks ahead.
const BATCH: usize = 16;
const AHEAD: usize = 4;

fn main() -> anyhow::Result<()> {
    let microseconds: u64 = std::env::args()
        .nth(1)
        .context("How long is a kernel, in microseconds?")?
        .parse()?;
    let context = CudaContext::new(0).context("Cannot open CUDA device 0")?;
    let stream = context.new_stream().context("Cannot create a stream")?;
    let spin = context.load_module(Ptx::from_src(PTX))?.load_function("spin")?;
    let nanoseconds = microseconds * 1000;
    println!("{}", json!({ "pid": std::process::id() }));
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    thread::spawn(move || {
        let _end = stdin().read_to_end(&mut Vec::new());
        told.store(true, Relaxed);
    });
    let mut marks = Vec::with_capacity(AHEAD);
    for batch in 0.. {
        if over.load(Relaxed) {
            break;
        }
        for _ in 0..BATCH {
            let mut launch = stream.launch_builder(&spin);
            launch.arg(&nanoseconds);
            // SAFETY: the kernel's one argument is a u64, and it touches no memory.
            unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }?;
        }
        let mark = stream.record_event(None)?;
        if batch < AHEAD {
            marks.push(mark);
        } else {
            std::mem::replace(&mut marks[batch % AHEAD], mark).synchronize()?;
        }
    }
    stream.synchronize()?;
    Ok(())
}
