//! The C compiler's part: preprocessing the headers and measuring the types they declare.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// What the driver's interop headers need of the graphics headers, so that those need not be installed. Public facts
/// of the Khronos and VDPAU ABIs; `cudaProfiler.h` is not in the runtime's wheel, its three functions are in the driver.
const STAND_INS: &[(&str, &str)] = &[
    (
        "GL/gl.h",
        "typedef unsigned int GLenum; typedef unsigned int GLuint;",
    ),
    ("EGL/egl.h", "typedef int EGLint;"),
    (
        "EGL/eglext.h",
        "typedef void *EGLImageKHR; typedef void *EGLStreamKHR; typedef void *EGLSyncKHR;",
    ),
    (
        "vdpau/vdpau.h",
        "#include <stdint.h>\ntypedef uint32_t VdpDevice; typedef uint32_t VdpVideoSurface;\n\
         typedef uint32_t VdpOutputSurface; typedef uint32_t VdpGetProcAddress(uint32_t, uint32_t, void **);",
    ),
    (
        "cudaProfiler.h",
        "typedef enum CUoutput_mode_enum { CU_OUT_KEY_VALUE_PAIR = 0, CU_OUT_CSV = 1 } CUoutput_mode;\n\
         CUresult CUDAAPI cuProfilerInitialize(const char *configFile, const char *outputFile, CUoutput_mode outputMode);\n\
         CUresult CUDAAPI cuProfilerStart(void);\nCUresult CUDAAPI cuProfilerStop(void);",
    ),
    // What libnvidia-ml.so.1 exports and its header does not declare: two names of CUDA 11, and the door to the tables
    // that NVIDIA's own tools use.
    (
        "nvmlUndeclared.h",
        "nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *deviceCount);\n\
         nvmlReturn_t nvmlGetBlacklistDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info);\n\
         nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);",
    ),
    // Of cuda_profiler_api.h, which is in another wheel.
    (
        "cudaProfilerRuntime.h",
        "extern cudaError_t cudaProfilerStart(void); extern cudaError_t cudaProfilerStop(void);",
    ),
    // What nvcc's own code calls, and what older programs did: the shared libraries export them.
    (
        "cudaRuntimeUndeclared.h",
        "extern void **__cudaRegisterFatBinary(void *fatCubin);\n\
         extern void __cudaRegisterFatBinaryEnd(void **fatCubinHandle);\n\
         extern void __cudaUnregisterFatBinary(void **fatCubinHandle);\n\
         extern void __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress, const char *deviceName, int ext, size_t size, int constant, int global);\n\
         extern void __cudaRegisterManagedVar(void **fatCubinHandle, void **hostVarPtrAddress, char *deviceAddress, const char *deviceName, int ext, size_t size, int constant, int global);\n\
         extern void __cudaRegisterHostVar(void **fatCubinHandle, const char *deviceName, char *hostVar, size_t size);\n\
         extern void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun, const char *deviceName, int thread_limit, uint3 *tid, uint3 *bid, dim3 *bDim, dim3 *gDim, int *wSize);\n\
         extern void __cudaRegisterUnifiedTable(void **fatCubinHandle, void *table);\n\
         extern char __cudaInitModule(void **fatCubinHandle);\n\
         extern unsigned int __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem, void *stream);\n\
         extern cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem, void *stream);\n\
         extern cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *func);\n\
         extern cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem, cudaStream_t stream);\n\
         extern cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem, cudaStream_t stream);",
    ),
];

/// The CUDA driver's declarations, all at once: with this macro the headers declare the older versions and the
/// per-thread variants too.
pub const CUDA: &str = "#define __CUDA_API_VERSION_INTERNAL\n#define CUDA_ENABLE_DEPRECATED\n\
    #include <vdpau/vdpau.h>\n#include <cuda.h>\n#include <cudaGL.h>\n#include <cudaEGL.h>\n#include <cudaVDPAU.h>\n#include <cudaProfiler.h>\n";

/// NVML's: with the first macro nvml.h declares the older versions as functions of their own; the second leaves out
/// which of them are deprecated.
pub const NVML: &str = "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#define __attribute__(x)\n\
    #include <nvml.h>\n#include <nvmlUndeclared.h>\n";

/// The runtime's: `__CUDA_API_VERSION_INTERNAL` declares the per-thread variants beside the others. The vectors' header
/// has attributes that the parser does not know, and nothing of it but `dim3` and `uint3` is used.
pub const RUNTIME: &str = "#define __CUDA_API_VERSION_INTERNAL\n#define __attribute__(x)\n#define __VECTOR_TYPES_H__\n\
    #include <stddef.h>\nstruct uint3 { unsigned int x, y, z; }; typedef struct uint3 uint3;\n\
    struct dim3 { unsigned int x, y, z; }; typedef struct dim3 dim3;\n\
    #include <cuda_runtime_api.h>\n#include <cudaProfilerRuntime.h>\n#include <cudaRuntimeUndeclared.h>\n";

/// A C compiler with the vendor's headers in front of it.
pub struct Compiler {
    headers: PathBuf,
    scratch: PathBuf,
    also: Option<PathBuf>,
    unit: &'static str,
}

impl Compiler {
    /// `headers` holds what `unit` ([`CUDA`], [`NVML`]) includes; `scratch` is a folder of ours that may be filled.
    pub fn new(headers: &Path, scratch: &Path, unit: &'static str) -> anyhow::Result<Self> {
        for (name, text) in STAND_INS {
            let path = scratch.join("stand-ins").join(name);
            std::fs::create_dir_all(path.parent().expect("names have a folder"))?;
            std::fs::write(path, text)?;
        }
        Ok(Self {
            headers: headers.to_owned(),
            scratch: scratch.to_owned(),
            also: None,
            unit,
        })
    }

    /// With one more folder of headers.
    pub fn also(mut self, folder: &Path) -> Self {
        self.also = Some(folder.to_owned());
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        command
            .arg("-I")
            .arg(&self.headers)
            .arg("-I")
            .arg(self.scratch.join("stand-ins"));
        if let Some(folder) = &self.also {
            command.arg("-I").arg(folder);
        }
        command
    }

    /// The preprocessed declarations, with line markers.
    pub fn preprocessed(&self) -> anyhow::Result<String> {
        self.on(&["-E"], self.unit)
    }

    /// Every macro that the headers leave defined, as `#define` lines.
    pub fn macros(&self) -> anyhow::Result<String> {
        self.on(&["-E", "-dM"], self.unit)
    }

    fn on(&self, arguments: &[&str], text: &str) -> anyhow::Result<String> {
        let source = self.scratch.join("unit.c");
        std::fs::write(&source, text)?;
        let output = self
            .command()
            .args(arguments)
            .arg(&source)
            .output()
            .context("Cannot start the C compiler")?;
        if !output.status.success() {
            bail!(
                "The C compiler refuses: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Values of C expressions of type size_t, in order, by compiling and running a program.
    pub fn sizes(&self, expressions: &[String]) -> anyhow::Result<Vec<u64>> {
        let unit = self.unit;
        let mut program = format!("#include <stdio.h>\n#include <stddef.h>\n{unit}int main(void) {{\n");
        for expression in expressions {
            writeln!(program, "printf(\"%zu\\n\", (size_t)({expression}));")?;
        }
        program.push_str("return 0; }\n");
        let binary = self.scratch.join("sizes");
        self.on(
            &["-o", binary.to_str().context("Scratch path is not UTF-8")?],
            &program,
        )?;
        let output = Command::new(&binary)
            .output()
            .context("Cannot run the size program")?;
        let text = String::from_utf8(output.stdout)?;
        let values: Result<Vec<u64>, _> = text.lines().map(str::parse).collect();
        let values = values?;
        if values.len() != expressions.len() {
            bail!(
                "The size program printed {} of {} values",
                values.len(),
                expressions.len()
            );
        }
        Ok(values)
    }
}
