//! What the driver answers to calls whose answers do not depend on what else the machine does: attributes, errors,
//! occupancy, pitch. Each by a name, so that two drivers can be held against each other.

use core::ffi::CStr;
use std::collections::BTreeMap;

use divvy_abi::{
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUcontext, CUdevice_attribute, CUfunction_attribute, CUlimit, CUresult,
};

use super::driver::{CudaError, Gpu};
use super::kernels::{Kernel, SPAN_PTX};

/// A call's name and what came of it.
pub type Answers = BTreeMap<String, String>;

/// Attributes that tell of this machine or of the card's settings, and not of the product: clocks (13, 36), compute mode
/// (20), ECC (32), places on buses (33, 34, 50), boards (84, 85), and numbers of sockets and of PCI (134 and on).
const OF_THE_MACHINE: [u32; 9] = [13, 20, 32, 33, 34, 36, 50, 84, 85];
const MACHINE_FROM: u32 = 134;
/// Beyond the last that any driver knows.
const ATTRIBUTES: u32 = 200;

/// Shared memory, and a barrier: what occupancy depends on.
const TILE_PTX: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry tile(.param .u64 place)
{
    .reg .u64 %rd<3>;
    .reg .u32 %r<3>;
    .shared .align 4 .b8 part[16384];
    ld.param.u64 %rd1, [place];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    st.shared.u32 [part], %r1;
    bar.sync 0;
    ld.shared.u32 %r2, [part];
    st.global.u32 [%rd2], %r2;
    ret;
}
";

fn word(result: CUresult) -> String {
    let name = result.name().unwrap_or(c"an error that has no name");
    name.to_string_lossy().into_owned()
}

/// The value, or the error in its place.
fn told(result: CUresult, value: impl ToString) -> String {
    match result {
        divvy_abi::CUDA_SUCCESS => value.to_string(),
        result => word(result),
    }
}

impl Gpu {
    /// All of them.
    ///
    /// # Errors
    /// Where the driver refuses a kernel that every driver takes.
    pub fn answers(&self) -> Result<Answers, CudaError> {
        let mut answers = Answers::new();
        self.attributes(&mut answers);
        self.pitches(&mut answers);
        let span = self.kernel(SPAN_PTX, c"span")?;
        let tile = self.kernel(TILE_PTX, c"tile")?;
        self.occupancies(&mut answers, "span", span);
        self.occupancies(&mut answers, "tile", tile);
        self.limits(&mut answers);
        self.errors(&mut answers, span);
        Ok(answers)
    }

    fn attributes(&self, answers: &mut Answers) {
        let known =
            (1..ATTRIBUTES).filter(|number| !OF_THE_MACHINE.contains(number) && *number < MACHINE_FROM);
        for number in known {
            let mut value = 0;
            // SAFETY: a pointer to a live variable; a number that the driver does not know it refuses.
            let result = unsafe {
                (self.table.cuDeviceGetAttribute)(&mut value, CUdevice_attribute(number), self.device)
            };
            answers.insert(format!("attribute.{number:03}"), told(result, value));
        }
    }

    fn pitches(&self, answers: &mut Answers) {
        for width in [1, 100, 256, 511, 513, 1000, 4096, 5000, 65_537] {
            for size in [4, 8, 16] {
                let (mut address, mut pitch) = (0, 0);
                // SAFETY: pointers to live variables; what was got is given back.
                let result = unsafe {
                    let got = (self.table.cuMemAllocPitch_v2)(&mut address, &mut pitch, width, 3, size);
                    (self.table.cuMemFree_v2)(address);
                    got
                };
                answers.insert(format!("pitch.{width}.{size}"), told(result, pitch));
            }
        }
        let step = self.granularity();
        let step = step.map_or_else(
            |error| error.to_string(),
            |(least, best)| format!("{least}, {best}"),
        );
        answers.insert("granularity".into(), step);
    }

    fn occupancies(&self, answers: &mut Answers, name: &str, kernel: Kernel) {
        for block in [1, 32, 33, 96, 128, 256, 512, 768, 1024] {
            for shared in [0, 1024, 10_000, 40_000] {
                let mut blocks = 0;
                // SAFETY: a pointer to a live variable, and a function of this context's.
                let result = unsafe {
                    (self.table.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                        &mut blocks,
                        kernel.0,
                        block,
                        shared,
                    )
                };
                answers.insert(format!("occupancy.{name}.{block}.{shared}"), told(result, blocks));
            }
        }
        let (mut grid, mut block) = (0, 0);
        // SAFETY: pointers to live variables, and no function for the shared memory.
        let result = unsafe {
            (self.table.cuOccupancyMaxPotentialBlockSize)(&mut grid, &mut block, kernel.0, None, 0, 0)
        };
        answers.insert(
            format!("occupancy.{name}.best"),
            told(result, format!("{grid}, {block}")),
        );
        // Bytes of shared, constant and local memory. Registers are the compiler's choice, and not the device's.
        for attribute in [0, 1, 2, 3] {
            let mut value = 0;
            // SAFETY: a pointer to a live variable, and a function of this context's.
            let result = unsafe {
                (self.table.cuFuncGetAttribute)(&mut value, CUfunction_attribute(attribute), kernel.0)
            };
            answers.insert(format!("function.{name}.{attribute}"), told(result, value));
        }
    }

    fn limits(&self, answers: &mut Answers) {
        for limit in 0..8 {
            let mut value = 0;
            // SAFETY: a pointer to a live variable; a limit that the driver does not know it refuses.
            let result = unsafe { (self.table.cuCtxGetLimit)(&mut value, CUlimit(limit)) };
            answers.insert(format!("limit.{limit}"), told(result, value));
        }
    }

    /// Calls that are refused, and leave the context as it was.
    fn errors(&self, answers: &mut Answers, kernel: Kernel) {
        let mut note = |what: &str, result: CUresult| {
            answers.insert(format!("error.{what}"), word(result));
        };
        let (mut address, mut device, mut context): (_, _, CUcontext) = (0, 0, std::ptr::null_mut());
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let host = [0_u8; 64];
        let table = &self.table;
        let launch = |blocks: u32, threads: u32, shared: u32| {
            let mut words = [0_u64, 0];
            let [first, second] = &mut words;
            let mut parameters = [(&raw mut *first).cast(), (&raw mut *second).cast()];
            // SAFETY: one pointer for each parameter of the kernel. Each launch that is asked for has a shape that no device
            // takes.
            unsafe {
                (table.cuLaunchKernel)(
                    kernel.0,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    shared,
                    std::ptr::null_mut(),
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        };
        note("launch.no_blocks", launch(0, 1, 0));
        note("launch.no_threads", launch(1, 0, 0));
        note("launch.many_threads", launch(1, 2048, 0));
        note("launch.much_shared", launch(1, 1, 1 << 20));
        // SAFETY: every pointer is to live memory of the type that the signature names, or is null where the driver has to
        // say so; handles are null or this context's.
        unsafe {
            note("device.number", (table.cuDeviceGet)(&mut device, 99));
            note("device.negative", (table.cuDeviceGet)(&mut device, -1));
            note("allocate.nothing", (table.cuMemAlloc_v2)(&mut address, 0));
            note(
                "allocate.all",
                (table.cuMemAlloc_v2)(&mut address, usize::MAX >> 8),
            );
            note("free.nothing", (table.cuMemFree_v2)(0));
            note("free.unknown", (table.cuMemFree_v2)(0x1234_5000));
            note(
                "module.rubbish",
                (table.cuModuleLoadData)(&mut module, c"rubbish".as_ptr().cast()),
            );
            let other = c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry other() { ret; }\n";
            note(
                "module.plain",
                (table.cuModuleLoadData)(&mut module, other.as_ptr().cast()),
            );
            let found = (table.cuModuleGetFunction)(&mut function, module, c"nothing".as_ptr());
            note("module.no_function", found);
            let mut bytes = 0;
            let found = (table.cuModuleGetGlobal_v2)(&mut address, &mut bytes, module, c"nothing".as_ptr());
            note("module.no_global", found);
            note("module.unload", (table.cuModuleUnload)(module));
            note(
                "attribute.unknown",
                (table.cuDeviceGetAttribute)(&mut device, CUdevice_attribute(9999), self.device),
            );
            note("stream.query", (table.cuStreamQuery)(std::ptr::null_mut()));
            let mut event = std::ptr::null_mut();
            note("event.flags", (table.cuEventCreate)(&mut event, 0xffff));
            let mut second = std::ptr::null_mut();
            note("event.create", (table.cuEventCreate)(&mut event, 0));
            note("event.create_second", (table.cuEventCreate)(&mut second, 0));
            let mut milliseconds = 0.0;
            note(
                "event.not_recorded",
                (table.cuEventElapsedTime)(&mut milliseconds, event, second),
            );
            note("event.query", (table.cuEventQuery)(event));
            note("event.destroy", (table.cuEventDestroy_v2)(event));
            let mut kind = 0_u32;
            let at = host.as_ptr() as u64;
            let asked =
                (table.cuPointerGetAttribute)((&raw mut kind).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
            note("pointer.host", asked);
            note("allocate.one", (table.cuMemAlloc_v2)(&mut address, 4096));
            let aligned = if address % 512 == 0 {
                "a multiple of 512"
            } else {
                "another"
            };
            let copied = (table.cuMemcpyHtoD_v2)(address, host.as_ptr().cast(), 0);
            note("copy.nothing", copied);
            note(
                "copy.to_nowhere",
                (table.cuMemcpyHtoD_v2)(0, host.as_ptr().cast(), 64),
            );
            note("set.odd_address", (table.cuMemsetD32_v2)(address + 1, 0, 4));
            note("free.inside", (table.cuMemFree_v2)(address + 256));
            note("free.once", (table.cuMemFree_v2)(address));
            note("free.twice", (table.cuMemFree_v2)(address));
            let end = (table.cuStreamEndCapture)(std::ptr::null_mut(), &mut std::ptr::null_mut());
            note("capture.not_begun", end);
            // Without a context.
            (table.cuCtxGetCurrent)(&mut context);
            note("context.none", (table.cuCtxSetCurrent)(std::ptr::null_mut()));
            note("context.allocate", (table.cuMemAlloc_v2)(&mut address, 4096));
            note("context.synchronize", (table.cuCtxSynchronize)());
            note("context.back", (table.cuCtxSetCurrent)(context));
            answers.insert("address".into(), aligned.into());
        }
    }
}
