//! The few driver calls of a program that keeps a device busy, from whatever libcuda.so.1 the loader finds.

use std::ffi::{CStr, CString};
use std::path::Path;

use anyhow::{Context, bail};
use divvy_abi::{
    CUcontext, CUdevice, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUresult, CUstream, c_char,
    c_void,
};

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($of:ty),*);)*) => {
        /// A loaded driver.
        #[derive(Clone, Copy)]
        pub struct Cuda {
            $($field: unsafe extern "C" fn($($of),*) -> CUresult,)*
        }

        impl Cuda {
            /// Loads libcuda.so.1 as a program does that links it.
            ///
            /// # Errors
            /// What is missing.
            pub fn load() -> anyhow::Result<Self> {
                // SAFETY: a C string.
                let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    bail!("Cannot load libcuda.so.1");
                }
                let symbol = |name: &CStr| {
                    // SAFETY: the handle is open and stays so; a C string.
                    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    if address.is_null() { None } else { Some(address) }.with_context(|| format!("No {name:?}"))
                };
                Ok(Self {
                    // SAFETY: the driver's functions of these names have these types.
                    $($field: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($of),*) -> CUresult>(symbol($symbol)?) },)*
                })
            }
        }
    };
}

driver! {
    init = c"cuInit" (u32);
    retain = c"cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
    set_current = c"cuCtxSetCurrent" (CUcontext);
    synchronize = c"cuCtxSynchronize" ();
    load_data = c"cuModuleLoadData" (*mut CUmodule, *const c_void);
    function = c"cuModuleGetFunction" (*mut CUfunction, CUmodule, *const c_char);
    launch = c"cuLaunchKernel" (CUfunction, u32, u32, u32, u32, u32, u32, u32, CUstream, *mut *mut c_void, *mut *mut c_void);
    event = c"cuEventCreate" (*mut CUevent, u32);
    record = c"cuEventRecord" (CUevent, CUstream);
    wait = c"cuEventSynchronize" (CUevent);
    stream = c"cuStreamCreate" (*mut CUstream, u32);
    begin_capture = c"cuStreamBeginCapture_v2" (CUstream, i32);
    end_capture = c"cuStreamEndCapture" (CUstream, *mut CUgraph);
    instantiate = c"cuGraphInstantiateWithFlags" (*mut CUgraphExec, CUgraph, u64);
    launch_graph = c"cuGraphLaunch" (CUgraphExec, CUstream);
    destroy_exec = c"cuGraphExecDestroy" (CUgraphExec);
}

/// A kernel that lasts as long as its argument says.
#[derive(Clone, Copy)]
pub struct Spin {
    cuda: Cuda,
    function: CUfunction,
}

/// A kernel that does nothing.
#[derive(Clone, Copy)]
pub struct Empty {
    cuda: Cuda,
    function: CUfunction,
}

/// A kernel that computes for so many rounds.
#[derive(Clone, Copy)]
pub struct Compute {
    cuda: Cuda,
    function: CUfunction,
}

/// A captured step of many kernels.
#[derive(Clone, Copy)]
pub struct Step {
    cuda: Cuda,
    graph: CUgraph,
}

/// A step that can be launched.
pub struct Executable {
    cuda: Cuda,
    exec: CUgraphExec,
}

/// A mark in the default stream.
#[derive(Clone, Copy)]
pub struct Mark {
    cuda: Cuda,
    event: CUevent,
}

/// One thread that reads the device's clock until so many nanoseconds are over.
const SPIN: &CStr = c"
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

/// It ends at once.
const EMPTY: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry empty(.param .u64 nothing)
{
    ret;
}
";

/// A warp multiplies and adds, four times a round.
const COMPUTE: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry compute(.param .u64 rounds)
{
    .reg .u64 %rd<3>;
    .reg .f32 %f<3>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [rounds];
    mov.f32 %f1, 0f3F800000;
    mov.f32 %f2, 0f3F7FFFF0;
again:
    fma.rn.f32 %f1, %f1, %f2, %f2;
    fma.rn.f32 %f1, %f1, %f2, %f2;
    fma.rn.f32 %f1, %f1, %f2, %f2;
    fma.rn.f32 %f1, %f1, %f2, %f2;
    sub.u64 %rd1, %rd1, 1;
    setp.ne.u64 %p1, %rd1, 0;
    @%p1 bra again;
    ret;
}
";

impl Cuda {
    /// Loads the driver that lies in this file. Its SONAME is what programs look for.
    ///
    /// # Errors
    /// It cannot be loaded, or lacks something.
    pub fn load_from(library: &Path) -> anyhow::Result<Self> {
        let path = CString::new(library.as_os_str().as_encoded_bytes())?;
        // SAFETY: a C string. The library stays loaded, and the loader finds it again by its SONAME.
        if unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null() {
            bail!("Cannot load {}", library.display());
        }
        Self::load()
    }

    /// Loads the empty kernel.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn empty(&self) -> anyhow::Result<Empty> {
        Ok(Empty {
            cuda: *self,
            function: self.kernel(EMPTY, c"empty")?,
        })
    }

    /// Initialises, and makes the first device's primary context current.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn begin(&self) -> anyhow::Result<()> {
        let mut context = std::ptr::null_mut();
        // SAFETY: valid out-parameters.
        unsafe {
            (self.init)(0).ok().context("cuInit")?;
            (self.retain)(&raw mut context, 0)
                .ok()
                .context("cuDevicePrimaryCtxRetain")?;
            (self.set_current)(context).ok().context("cuCtxSetCurrent")
        }
    }

    /// Waits for all work.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn synchronize(&self) -> anyhow::Result<()> {
        // SAFETY: no pointers.
        unsafe { (self.synchronize)() }.ok().context("cuCtxSynchronize")
    }

    /// Loads the spinning kernel.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn spin(&self) -> anyhow::Result<Spin> {
        Ok(Spin {
            cuda: *self,
            function: self.kernel(SPIN, c"spin")?,
        })
    }

    /// Loads the computing kernel.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn compute(&self) -> anyhow::Result<Compute> {
        Ok(Compute {
            cuda: *self,
            function: self.kernel(COMPUTE, c"compute")?,
        })
    }

    fn kernel(&self, source: &CStr, name: &CStr) -> anyhow::Result<CUfunction> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: valid out-parameters and C strings.
        unsafe {
            (self.load_data)(&raw mut module, source.as_ptr().cast())
                .ok()
                .context("cuModuleLoadData")?;
            (self.function)(&raw mut function, module, name.as_ptr())
                .ok()
                .context("cuModuleGetFunction")?;
        }
        Ok(function)
    }

    /// Launches a kernel of one argument in one block of so many threads.
    fn launch_one(
        &self,
        function: CUfunction,
        threads: u32,
        mut argument: u64,
        stream: CUstream,
    ) -> anyhow::Result<()> {
        let none: CUstream = std::ptr::null_mut();
        let mut parameters = [(&raw mut argument).cast::<c_void>()];
        // SAFETY: one parameter of eight bytes, as the kernels here declare it, read before this returns.
        unsafe {
            (self.launch)(
                function,
                1,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                none.cast(),
            )
        }
        .ok()
        .context("cuLaunchKernel")
    }

    /// Makes a mark.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn mark(&self) -> anyhow::Result<Mark> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a valid out-parameter.
        unsafe { (self.event)(&raw mut event, 0) }
            .ok()
            .context("cuEventCreate")?;
        Ok(Mark { cuda: *self, event })
    }
}

impl Empty {
    /// Launches one warp of it.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn launch(&self) -> anyhow::Result<()> {
        self.cuda.launch_one(self.function, 32, 0, std::ptr::null_mut())
    }
}

impl Spin {
    /// Launches it for this long. Kernels of another `shape` count as other kernels where estimates are kept: 0 to 31.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn launch(&self, nanoseconds: u64, shape: u32) -> anyhow::Result<()> {
        self.cuda
            .launch_one(self.function, shape + 1, nanoseconds, std::ptr::null_mut())
    }
}

impl Spin {
    /// Captures so many kernels of this length, one after the other.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn capture(&self, kernels: u32, nanoseconds: u64) -> anyhow::Result<Step> {
        /// Captures of other threads do not matter.
        const RELAXED: i32 = 2;
        const NON_BLOCKING: u32 = 1;
        let (mut stream, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: valid out-parameters.
        unsafe {
            (self.cuda.stream)(&raw mut stream, NON_BLOCKING)
                .ok()
                .context("cuStreamCreate")?;
            (self.cuda.begin_capture)(stream, RELAXED)
                .ok()
                .context("cuStreamBeginCapture")?;
        }
        for _ in 0..kernels {
            self.cuda.launch_one(self.function, 1, nanoseconds, stream)?;
        }
        // SAFETY: a valid out-parameter.
        unsafe { (self.cuda.end_capture)(stream, &raw mut graph) }
            .ok()
            .context("cuStreamEndCapture")?;
        Ok(Step {
            cuda: self.cuda,
            graph,
        })
    }
}

impl Step {
    /// Makes it ready, as a program does that captures each step again.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn instantiate(&self) -> anyhow::Result<Executable> {
        let mut exec = std::ptr::null_mut();
        // SAFETY: a valid out-parameter and a graph of this driver.
        unsafe { (self.cuda.instantiate)(&raw mut exec, self.graph, 0) }
            .ok()
            .context("cuGraphInstantiate")?;
        Ok(Executable {
            cuda: self.cuda,
            exec,
        })
    }
}

impl Executable {
    /// Launches it in the default stream.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn launch(&self) -> anyhow::Result<()> {
        // SAFETY: an executable graph of this driver.
        unsafe { (self.cuda.launch_graph)(self.exec, std::ptr::null_mut()) }
            .ok()
            .context("cuGraphLaunch")
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: as above. A graph that runs ends first.
        let _gone = unsafe { (self.cuda.destroy_exec)(self.exec) };
    }
}

impl Compute {
    /// Launches one warp for so many rounds.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn launch(&self, rounds: u64) -> anyhow::Result<()> {
        self.cuda
            .launch_one(self.function, 32, rounds, std::ptr::null_mut())
    }
}

impl Mark {
    /// Puts it behind everything launched so far.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn record(&self) -> anyhow::Result<()> {
        // SAFETY: an event of this driver.
        unsafe { (self.cuda.record)(self.event, std::ptr::null_mut()) }
            .ok()
            .context("cuEventRecord")
    }

    /// Waits until what it was last put behind is over.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn wait(&self) -> anyhow::Result<()> {
        // SAFETY: an event of this driver.
        unsafe { (self.cuda.wait)(self.event) }
            .ok()
            .context("cuEventSynchronize")
    }
}
