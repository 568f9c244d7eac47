//! Kernels, and what they leave in memory.

use core::ffi::{CStr, c_void};

use divvy_abi::{CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};

use super::driver::{CudaError, Gpu, check};

/// `span`: one thread reads the device's clock until `nanoseconds` are over, and writes down when it began and when it ended:
/// two words of eight bytes at `place`, in nanoseconds of %globaltimer. `tally` does so at the next place of many, as graphs
/// need it, whose parameters stay the same: the number of places is at `counter`.
pub const SPAN_PTX: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry span(.param .u64 nanoseconds, .param .u64 place)
{
    .reg .u64 %rd<7>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];
    ld.param.u64 %rd5, [place];
    cvta.to.global.u64 %rd6, %rd5;
    mov.u64 %rd2, %globaltimer;
    st.global.u64 [%rd6], %rd2;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    st.global.u64 [%rd6+8], %rd3;
    ret;
}
.visible .entry tally(.param .u64 nanoseconds, .param .u64 counter, .param .u64 place)
{
    .reg .u64 %rd<10>;
    .reg .pred %p<2>;
    mov.u64 %rd2, %globaltimer;
    ld.param.u64 %rd1, [nanoseconds];
    ld.param.u64 %rd5, [counter];
    cvta.to.global.u64 %rd6, %rd5;
    atom.global.add.u64 %rd7, [%rd6], 1;
    ld.param.u64 %rd8, [place];
    cvta.to.global.u64 %rd9, %rd8;
    shl.b64 %rd7, %rd7, 4;
    add.u64 %rd9, %rd9, %rd7;
    st.global.u64 [%rd9], %rd2;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    st.global.u64 [%rd9+8], %rd3;
    ret;
}
";

/// A function of a loaded module.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(pub(super) CUfunction);

/// A loaded module.
#[derive(Debug)]
pub struct Module(CUmodule);

/// How many blocks a launch has, and how many threads a block, in two dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub grid: (u32, u32),
    /// Threads of a block.
    pub block: (u32, u32),
    /// Shared memory of a block beside what its kernel declares, in bytes.
    pub shared: u32,
}

impl Shape {
    /// In one dimension.
    #[must_use]
    pub fn line(blocks: u32, threads: u32) -> Self {
        Self {
            grid: (blocks, 1),
            block: (threads, 1),
            shared: 0,
        }
    }
}

/// A place in a stream.
#[derive(Clone, Copy, Debug)]
pub struct Event(CUevent);

/// Who waits for it sleeps.
const CU_EVENT_BLOCKING_SYNC: u32 = 1;

impl Gpu {
    /// Compiles PTX and finds a function in it.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn kernel(&self, source: &CStr, name: &CStr) -> Result<Kernel, CudaError> {
        self.load_kernel(source, name).map(|(_, kernel)| kernel)
    }

    /// The same, with the module, for [`Gpu::unload`].
    ///
    /// # Errors
    /// What the driver answers.
    pub fn load_kernel(&self, source: &CStr, name: &CStr) -> Result<(Module, Kernel), CudaError> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: C strings, and pointers to live variables.
        unsafe {
            let loaded = (self.table.cuModuleLoadData)(&mut module, source.as_ptr().cast());
            check("cuModuleLoadData", loaded)?;
            let found = (self.table.cuModuleGetFunction)(&mut function, module, name.as_ptr());
            check("cuModuleGetFunction", found)?;
        }
        Ok((Module(module), Kernel(function)))
    }

    /// Unloads a module. None of its kernels is launched after that.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn unload(&self, module: Module) -> Result<(), CudaError> {
        // SAFETY: a module of this driver's, given back once: it is not copied.
        check("cuModuleUnload", unsafe { (self.table.cuModuleUnload)(module.0) })
    }

    /// Launches it in the default stream. `parameters` are the bytes of each, as the kernel declares them.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn launch(&self, kernel: Kernel, shape: Shape, parameters: &mut [Vec<u8>]) -> Result<(), CudaError> {
        self.launch_into(std::ptr::null_mut(), kernel, shape, parameters)
    }

    pub(super) fn launch_into(
        &self,
        stream: CUstream,
        kernel: Kernel,
        shape: Shape,
        parameters: &mut [Vec<u8>],
    ) -> Result<(), CudaError> {
        let mut places: Vec<*mut c_void> = parameters
            .iter_mut()
            .map(|bytes| bytes.as_mut_ptr().cast())
            .collect();
        // SAFETY: one pointer for each parameter, to as many bytes as the kernel declares, read before this returns.
        let launched = unsafe {
            (self.table.cuLaunchKernel)(
                kernel.0,
                shape.grid.0,
                shape.grid.1,
                1,
                shape.block.0,
                shape.block.1,
                1,
                shape.shared,
                stream,
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", launched)
    }

    /// Launches [`SPAN_PTX`]'s kernel.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn span(&self, kernel: Kernel, nanoseconds: u64, place: CUdeviceptr) -> Result<(), CudaError> {
        let word = |word: u64| word.to_le_bytes().to_vec();
        self.launch(kernel, Shape::line(1, 1), &mut [word(nanoseconds), word(place)])
    }

    /// An event, which nothing waits for yet.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn event(&self) -> Result<Event, CudaError> {
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: a pointer to a live variable.
        let created = unsafe { (self.table.cuEventCreate)(&mut event, CU_EVENT_BLOCKING_SYNC) };
        check("cuEventCreate", created).map(|()| Event(event))
    }

    /// Puts an event behind all that was launched in the default stream.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn record(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: an event of this driver's, which is never destroyed.
        let recorded = unsafe { (self.table.cuEventRecord)(event.0, std::ptr::null_mut()) };
        check("cuEventRecord", recorded)
    }

    /// Waits for what is before an event.
    ///
    /// # Errors
    /// What the driver answers: also what went wrong in a kernel.
    pub fn wait(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: an event of this driver's, which is never destroyed.
        check("cuEventSynchronize", unsafe {
            (self.table.cuEventSynchronize)(event.0)
        })
    }

    /// Memory of so many bytes, all of them zero.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn zeroed(&self, bytes: usize) -> Result<CUdeviceptr, CudaError> {
        let mut address = 0;
        // SAFETY: a pointer to a live variable; then memory of this length.
        unsafe {
            check("cuMemAlloc", (self.table.cuMemAlloc_v2)(&mut address, bytes))?;
            check("cuMemsetD8", (self.table.cuMemsetD8_v2)(address, 0, bytes))?;
        }
        Ok(address)
    }

    /// Gives such memory back.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn free(&self, address: CUdeviceptr) -> Result<(), CudaError> {
        // SAFETY: the driver checks the address.
        check("cuMemFree", unsafe { (self.table.cuMemFree_v2)(address) })
    }

    /// Puts bytes there.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn write(&self, address: CUdeviceptr, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: as many bytes as the slice has; the driver checks what is at the address.
        let copied = unsafe { (self.table.cuMemcpyHtoD_v2)(address, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD", copied)
    }

    /// The bytes there. Waits for what was launched before.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn read(&self, address: CUdeviceptr, length: usize) -> Result<Vec<u8>, CudaError> {
        let mut bytes = vec![0_u8; length];
        // SAFETY: room for as many bytes; the driver checks what is at the address.
        let copied = unsafe { (self.table.cuMemcpyDtoH_v2)(bytes.as_mut_ptr().cast(), address, length) };
        check("cuMemcpyDtoH", copied).map(|()| bytes)
    }
}
