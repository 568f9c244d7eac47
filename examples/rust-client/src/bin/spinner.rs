//! A tenant for the scenarios of compute: over cudarc it keeps its device busy with kernels of one length, some always
//! launched ahead, from its start until its standard input ends. It knows nothing of Divvy.
//!
//! Its arguments are the kernels' length in microseconds and on how many devices it launches each, one by default. It answers
//! each line of its input with a JSON object:
//!
//! - `hold BYTES`: keep that much memory of its first device, or say which error came
//! - `fault`: launch a kernel that writes where nothing is, and say which error the program then has

use std::io::{BufRead, stdin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use anyhow::Context;
use cudarc::driver::result::malloc_sync;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use serde_json::{Value, json};

/// One thread that reads the device's clock until so many nanoseconds are over; and one that writes where it is told.
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
.visible .entry write(.param .u64 address)
{
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [address];
    st.global.u64 [%rd1], %rd1;
    ret;
}
";

/// Kernels between two marks, and marks ahead.
const BATCH: usize = 16;
const AHEAD: usize = 4;
/// An address at which no device has memory.
const NOWHERE: u64 = 64;

/// A device, and what is launched there.
struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    spin: CudaFunction,
    write: CudaFunction,
    marks: Vec<CudaEvent>,
}

impl Device {
    fn open(ordinal: usize) -> anyhow::Result<Self> {
        let context =
            CudaContext::new(ordinal).with_context(|| format!("Cannot open CUDA device {ordinal}"))?;
        let module = context.load_module(Ptx::from_src(PTX))?;
        Ok(Self {
            stream: context.new_stream().context("Cannot create a stream")?,
            spin: module.load_function("spin")?,
            write: module.load_function("write")?,
            context,
            marks: Vec::with_capacity(AHEAD),
        })
    }

    fn launch(&self, function: &CudaFunction, argument: u64) -> Result<(), DriverError> {
        let mut launch = self.stream.launch_builder(function);
        launch.arg(&argument);
        // SAFETY: a kernel's one argument is a u64; one that touches memory that is not there ends this program's context.
        unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.map(drop)
    }

    /// Marks the end of a batch, and waits for one of those before.
    fn mark(&mut self, batch: usize) -> Result<(), DriverError> {
        let mark = self.stream.record_event(None)?;
        if batch < AHEAD {
            self.marks.push(mark);
            return Ok(());
        }
        std::mem::replace(&mut self.marks[batch % AHEAD], mark).synchronize()
    }

    fn answer(&self, line: &str) -> anyhow::Result<Value> {
        let outcome = match line.split_once(' ').unwrap_or((line, "")) {
            ("hold", bytes) => {
                // SAFETY: no code reads it, and it goes with the program.
                unsafe { malloc_sync(bytes.parse()?) }.map(drop)
            }
            ("fault", _) => {
                let launched = self.launch(&self.write, NOWHERE);
                launched.and_then(|()| self.context.synchronize())
            }
            (other, _) => anyhow::bail!("The spinner does not know the word {other}"),
        };
        Ok(json!({ "error": outcome.err().map(|error| format!("{:?}", error.0)) }))
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let microseconds: u64 = arguments
        .next()
        .context("How long is a kernel, in microseconds?")?
        .parse()?;
    let count: usize = arguments.next().map_or(Ok(1), |count| count.parse())?;
    let mut devices = (0..count).map(Device::open).collect::<anyhow::Result<Vec<_>>>()?;
    let first = devices.first().context("On no device nothing runs")?;
    first.context.bind_to_thread()?;
    println!("{}", json!({ "pid": std::process::id() }));
    let lines = input();
    for batch in 0.. {
        match lines.try_recv() {
            Ok(line) => println!("{}", devices[0].answer(&line)?),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        for _ in 0..BATCH {
            for device in &devices {
                device.context.bind_to_thread()?;
                device.launch(&device.spin, microseconds * 1000)?;
            }
        }
        for device in &mut devices {
            device.mark(batch)?;
        }
    }
    devices
        .iter()
        .try_for_each(|device| device.stream.synchronize())?;
    Ok(())
}

/// The lines of the standard input, as they come.
fn input() -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
