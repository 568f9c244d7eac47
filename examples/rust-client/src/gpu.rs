//! The device as this program sees it: one context, one stream, and the kernels loaded from PTX.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError};
use cudarc::nvrtc::Ptx;

/// The first CUDA device, opened.
pub struct Gpu {
    /// The device's primary context.
    pub context: Arc<CudaContext>,
    /// The stream all jobs use.
    pub stream: Arc<CudaStream>,
}

impl Gpu {
    /// Opens device 0 and makes a stream on it.
    pub fn open() -> anyhow::Result<Self> {
        let context = CudaContext::new(0).context("Cannot open CUDA device 0")?;
        let stream = context.new_stream().context("Cannot create a stream")?;
        Ok(Self { context, stream })
    }

    /// Loads `ptx` and finds the kernel called `name` in it.
    pub fn kernel(&self, ptx: &str, name: &str) -> anyhow::Result<CudaFunction> {
        let module = self
            .context
            .load_module(Ptx::from_src(ptx))
            .with_context(|| format!("Cannot load the PTX of {name}"))?;
        module
            .load_function(name)
            .with_context(|| format!("Cannot find the kernel {name}"))
    }

    /// Allocates `bytes` of zeroed device memory.
    pub fn allocate(&self, bytes: u64) -> Result<CudaSlice<u8>, DriverError> {
        let memory = self.stream.alloc_zeros(bytes as usize)?;
        self.stream.synchronize()?;
        Ok(memory)
    }

    /// Bytes free and bytes in all, as cuMemGetInfo tells them.
    pub fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let (free, total) = self.context.mem_get_info().context("cuMemGetInfo failed")?;
        Ok((free as u64, total as u64))
    }
}
