//! Plain CUDA programs, compiled by `divvy nvcc`, compute right on a device that is not there: our runtime stands in for
//! NVIDIA's.
//!
//! The programs of examples/cuda/runtime are compiled as one, which takes seconds. With DIVVY_TEST_LONG set each is a
//! program of its own too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_tests::clients::{cuda_programs, nvcc};
use divvy_tests::host::{Host, finish, stderr, succeeded};

/// What a split driver refuses: copies of the program's memory as nodes of graphs (two), memory that the program
/// registers, attributes of launches, and variables that host and device share.
const NOT_IN_ANOTHER_PROCESS: &[&str] = &["graph_memory", "graphs", "host_memory", "launches", "variables"];

/// The names of the programs, in order; `sticky` ends its context and comes last.
fn programs() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(cuda_programs())
        .expect("the programs")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "cu"))
        .map(|path| {
            path.file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort_by_key(|name| (name == "sticky", name.clone()));
    assert!(names.len() >= 30, "{names:?}");
    names
}

/// One source that has every program in a namespace of its own.
fn together(folder: &Path, names: &[String]) -> PathBuf {
    let mut text = String::from("#include \"check.h\"\n");
    for name in names {
        text += &format!("namespace program_{name} {{\n#include \"{name}.cu\"\n}}\n");
    }
    text += "int main(int count, char **words) {\n    int failed = 0;\n    for (int i = 1; i < count; i++) {\n        \
             int (*program)() = nullptr;\n";
    for name in names {
        text += &format!("        if (!std::strcmp(words[i], \"{name}\")) program = program_{name}::main;\n");
    }
    text += "        int answer = program ? program() : 2;\n        std::printf(\"%s: %s\\n\", words[i], answer ? \
             \"WRONG\" : \"right\");\n        std::fflush(stdout);\n        failed |= answer != 0;\n    }\n    return \
             failed;\n}\n";
    let source = folder.join("together.cu");
    fs::write(&source, text).expect("written");
    source
}

/// Compiles with `divvy nvcc`, which finds the compiler in the Python environment.
fn compile(host: &Host, environment: &Path, source: &Path, flags: &[&str]) -> PathBuf {
    let program = host.folder().join(source.file_stem().expect("a name"));
    let mut command = host.divvy(["nvcc"]);
    command
        .env("VIRTUAL_ENV", environment)
        .env_remove("CUDA_HOME")
        // In front, where divvy's own -o could stand.
        .arg("-o")
        .arg(&program)
        .args(["-std=c++17", "-w", "-I"])
        .arg(cuda_programs())
        .args(flags)
        .arg(source);
    succeeded(&finish(&mut command));
    program
}

fn all_right(text: &str, names: &[String]) {
    for name in names {
        assert!(text.contains(&format!("{name}: right\n")), "{name} in: {text}");
    }
}

#[test]
fn programs_of_nvcc_compute_right_in_a_slice() {
    let Some(environment) = nvcc() else { return };
    let host = Host::new();
    let names = programs();
    let program = compile(&host, &environment, &together(host.folder(), &names), &[]);
    let linked = Command::new("readelf")
        .args(["--dynamic", "--version-info"])
        .arg(&program)
        .output();
    if let Ok(linked) = linked {
        let linked = String::from_utf8_lossy(&linked.stdout).into_owned();
        assert!(linked.contains("libcudart.so.13"), "{linked}");
    }
    let output = finish(host.run("4GiB", &program).args(&names));
    assert_eq!(stderr(&output), "", "the loader finds the symbols' versions");
    all_right(&succeeded(&output), &names);
    check(&host, &program, &names);
    // The same, each thread with a default stream of its own.
    let program = compile(
        &host,
        &environment,
        &host_copy(&host, "streams"),
        &["--default-stream=per-thread"],
    );
    succeeded(&finish(&mut host.run("1GiB", &program)));
    if std::env::var_os("DIVVY_TEST_LONG").is_some() {
        for name in &names {
            let source = cuda_programs().join(format!("{name}.cu"));
            let program = compile(&host, &environment, &source, &[]);
            succeeded(&finish(&mut host.run("1GiB", &program)));
        }
    }
}

/// `divvy emulate check` finds nothing in the programs but what they do wrong to see an error: a free of what is no
/// allocation, and the wrong address of `sticky`.
fn check(host: &Host, program: &Path, names: &[String]) {
    let mut command = host.divvy(["emulate", "check", "-o", "json", "--"]);
    let output = finish(command.arg(program).args(names));
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(&output)));
    let findings = report["findings"].as_array().expect("findings");
    let kinds: Vec<_> = findings
        .iter()
        .map(|finding| {
            (
                finding["kind"].as_str(),
                finding["kernel"].as_str().unwrap_or_default(),
            )
        })
        .collect();
    assert!(
        matches!(kinds[..], [(Some("invalid_free"), ""), (Some("out_of_bounds"), kernel)] if kernel.contains("beyond")),
        "{report:#}"
    );
}

/// A copy of a program's source, whose own name then is that of what is compiled.
fn host_copy(host: &Host, name: &str) -> PathBuf {
    let copy = host.folder().join(format!("{name}_per_thread.cu"));
    fs::copy(cuda_programs().join(format!("{name}.cu")), &copy).expect("copied");
    copy
}

#[test]
fn programs_of_nvcc_have_no_device_of_their_own_under_enforced() {
    let Some(environment) = nvcc() else { return };
    let host = Host::new();
    let names: Vec<String> = programs()
        .into_iter()
        .filter(|name| !NOT_IN_ANOTHER_PROCESS.contains(&name.as_str()))
        .collect();
    let program = compile(&host, &environment, &together(host.folder(), &names), &[]);
    let mut run = host.divvy(["run", "--isolation", "enforced", "--memory", "4GiB", "--"]);
    let output = finish(run.arg(&program).args(&names));
    all_right(&succeeded(&output), &names);
}

/// What a program does before `main` and after it, in children, and with libraries that come and go.
const ODD: &str = r#"
#include "check.h"
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

__device__ int value = 1;
__global__ void set(int *x, int to) { *x = to + value; }

static int compute(int to) {
    int *x, found = 0;
    if (cudaMalloc(&x, sizeof(int)) != cudaSuccess) return -1;
    set<<<1, 1>>>(x, to);
    if (cudaMemcpy(&found, x, sizeof found, cudaMemcpyDeviceToHost) != cudaSuccess) return -2;
    return cudaFree(x) == cudaSuccess ? found : -3;
}

struct Global {
    int *memory = nullptr;
    int before;
    Global() : before(compute(10)) { cudaMalloc(&memory, 100); }
    ~Global() {
        // Whatever the runtime says when it is late, it does not crash.
        cudaFree(memory);
        int count = 0;
        cudaGetDeviceCount(&count);
        compute(30);
        cudaDeviceSynchronize();
    }
} global;

static void at_exit() {
    compute(40);
    cudaDeviceReset();
}

int main(int, char **words) {
    HOLDS(global.before == 11);
    std::atexit(at_exit);
    pid_t child = fork();
    if (child == 0) {
        int *x;
        // A context does not go with a fork: an error, and no crash.
        _exit(cudaMalloc(&x, 4) == cudaSuccess ? 1 : 0);
    }
    int status = 1;
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (!words[1]) {
        child = fork();
        if (child == 0) {
            execl(words[0], words[0], "again", nullptr);
            _exit(3);
        }
        HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(LIBRARY, RTLD_NOW);
        HOLDS(library != nullptr);
        auto function = (int (*)(int))dlsym(library, "from_library");
        HOLDS(function && function(round) == round + 500);
        HOLDS(dlclose(library) == 0);
    }
    HOLDS(compute(20) == 21);
    std::printf("right\n");
    return 0;
}
"#;

const LIBRARY: &str = r#"
#include "check.h"
__device__ int hidden = 500;
__global__ void add(int *x) { *x += hidden; }
extern "C" int from_library(int from) {
    Buffer<int> x(std::vector<int>{from});
    add<<<1, 1>>>(x.at);
    return x.read()[0];
}
"#;

#[test]
fn a_program_may_begin_early_end_late_fork_and_unload() {
    let Some(environment) = nvcc() else { return };
    let host = Host::new();
    let write = |name: &str, text: &str| {
        let path = host.folder().join(name);
        fs::write(&path, text).expect("written");
        path
    };
    let library = compile(
        &host,
        &environment,
        &write("library.cu", LIBRARY),
        &["-shared", "-Xcompiler", "-fPIC"],
    );
    let named = format!("-DLIBRARY=\"{}\"", library.display());
    let program = compile(&host, &environment, &write("odd.cu", ODD), &[&named]);
    let output = finish(&mut host.run("1GiB", &program));
    assert!(succeeded(&output).contains("right"), "{output:?}");
}

#[test]
fn without_a_compiler_the_command_says_where_it_looked() {
    let host = Host::new();
    let mut command = host.divvy(["nvcc", "-o", "a", "a.cu"]);
    command
        .env("PATH", host.folder())
        .env_remove("CUDA_HOME")
        .env_remove("CUDA_PATH")
        .env("VIRTUAL_ENV", host.folder());
    let output = finish(&mut command);
    // A machine of CI has no toolkit; one that has runs it.
    if !Path::new("/usr/local/cuda/bin/nvcc").exists() {
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(
            said.contains("D0097") && said.contains("pip install nvidia-cuda-nvcc"),
            "{said}"
        );
    }
}

/// A program of the runtime and of the driver API at once, which is linked with `-lcuda` and `-lnvidia-ml`.
const BOTH: &str = r#"
#include <cstdio>
#include <cuda.h>
#include <cuda_runtime.h>
extern "C" int nvmlInit_v2(void);
extern "C" int nvmlDeviceGetCount_v2(unsigned int *);

__global__ void fill(int *x) { x[threadIdx.x] = 3 * threadIdx.x; }

int main() {
    int *x, host[32] = {};
    CUcontext context = nullptr;
    size_t free = 0, total = 0;
    unsigned int devices = 0;
    if (cudaMalloc(&x, sizeof host) || cuCtxGetCurrent(&context) || !context || cuMemGetInfo(&free, &total)) return 1;
    fill<<<1, 32>>>(x);
    if (cuMemcpyDtoH(host, (CUdeviceptr)x, sizeof host) || host[31] != 93 || total != size_t(1) << 30) return 2;
    if (nvmlInit_v2() || nvmlDeviceGetCount_v2(&devices) || devices != 1) return 3;
    std::printf("right\n");
    return 0;
}
"#;

#[test]
fn a_program_is_linked_with_the_driver_without_a_driver() {
    let Some(environment) = nvcc() else { return };
    let host = Host::new();
    let source = host.folder().join("both.cu");
    fs::write(&source, BOTH).expect("written");
    let program = compile(&host, &environment, &source, &["-lcuda", "-lnvidia-ml"]);
    let output = finish(&mut host.run("1GiB", &program));
    assert!(succeeded(&output).contains("right"), "{output:?}");
}
