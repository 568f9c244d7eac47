//! A program keeps its own handlers, masks, umask, environment, order at exit, exit status, threads and descriptors.
//! Other people's preloads work, and upgrades and vandals disturb no program.

use std::path::Path;
use std::process::Command;

use divvy_tests::build::binaries;
use divvy_tests::clients::{compiler, probe, python_tenant, system_python};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use serde_json::json;

/// What the Python tenant says of itself, and how it ended.
fn report(command: &mut Command, python: &Path, part: &str) -> (String, Option<i32>) {
    let output = finish(
        command
            .arg(python)
            .arg(python_tenant())
            .args(["report", part])
            .env("OWN", "value"),
    );
    assert_eq!(stderr(&output), "", "{output:?}");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.code(),
    )
}

#[test]
fn a_program_is_the_same_with_the_limiter_in_it() {
    let Some(python) = system_python() else { return };
    let host = Host::new();
    // The level without a limiter: the same driver, nothing in front.
    let bare = report(
        &mut host.divvy(["run", "--isolation", "env", "--"]),
        &python,
        "yes",
    );
    let limited = report(&mut host.divvy(["run", "--memory", "1GiB", "--"]), &python, "yes");
    assert_eq!(limited, bare);
    assert_eq!(limited.1, Some(41), "{}", limited.0);
    assert!(limited.0.contains("\"umask\": 23"), "{}", limited.0);
    assert!(limited.0.ends_with("at exit: ['second']\n"), "{}", limited.0);

    // One that never calls CUDA has nothing of ours at work at all.
    let outside = report(host.command("env").arg("--"), &python, "no");
    let idle = report(&mut host.divvy(["run", "--memory", "1GiB", "--"]), &python, "no");
    assert_eq!(idle, outside);
}

/// Calls after teardown: from functions that run at exit, from the program's destructors, and from those of a library that
/// was there before the driver and ends after it.
#[test]
fn a_program_may_call_cuda_as_it_ends() {
    let Some(compiler) = compiler() else { return };
    let host = Host::new();
    let compile = |name: &str, source: &str, flags: &[&str]| {
        let file = host.folder().join(format!("{name}.c"));
        std::fs::write(&file, source).expect("a file");
        let made = host.folder().join(name);
        succeeded(&finish(
            Command::new(&compiler)
                .args(flags)
                .arg("-o")
                .arg(&made)
                .arg(&file)
                .arg("-ldl"),
        ));
        made
    };
    let late = compile("liblate.so", LATE, &["-shared", "-fPIC", "-w"]);
    let program = compile("ends", ENDS, &["-w", "-rdynamic"]);
    succeeded(&finish(
        &mut host.divvy(["slice", "create", "kept", "--memory", "1GiB"]),
    ));
    let run = |words: &[&str], preload: bool| {
        let mut command = host.divvy(words.iter().copied());
        command.arg(&program);
        if preload {
            command.env("LD_PRELOAD", &late);
        }
        let output = finish(&mut command);
        assert_eq!(output.status.code(), Some(41), "{output:?}");
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr(&output),
        )
    };
    for preload in [false, true] {
        let bare = run(&["run", "--isolation", "env", "--"], preload);
        let limited = run(&["run", "--slice", "kept", "--"], preload);
        assert_eq!(limited, bare);
        assert!(
            bare.0.starts_with("main 0 0 0\nat exit 0 0\ndestructor "),
            "{bare:?}"
        );
        assert_eq!(bare.0.contains("late "), preload, "{bare:?}");
        assert_eq!(host.slice("kept").memory_used_bytes, 0, "nothing is left charged");
    }
}

/// Finds the calls again each time, as a library that was loaded first has to.
const LATE: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    typedef unsigned long long pointer;
    __attribute__((destructor)) static void late(void) {
        int (*allocate)(pointer *, size_t) = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
        int (*release)(pointer) = dlsym(RTLD_DEFAULT, "cuMemFree_v2");
        int (*init)(unsigned) = dlsym(RTLD_DEFAULT, "cuInit");
        pointer more = 0;
        if (!allocate || !release || !init) return;
        int first = allocate(&more, 1 << 20), second = more ? release(more) : -1;
        printf("late %d %d %d %d\n", first, second, release(4096), init(0));
        fflush(stdout);
    }
"#;

const ENDS: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    #include <stdlib.h>
    typedef unsigned long long pointer;
    static pointer kept, other;
    static void *library;
    #define CALL(name, ...) ((int (*)())dlsym(library, name))(__VA_ARGS__)
    static void at_exit(void) {
        int freed = CALL("cuMemFree_v2", kept);
        int again = CALL("cuMemAlloc_v2", &kept, (size_t)1 << 20);
        printf("at exit %d %d\n", freed, again);
    }
    __attribute__((destructor)) static void done(void) {
        size_t free_bytes = 0, total = 0;
        int freed = CALL("cuMemFree_v2", other);
        int reset = CALL("cuDevicePrimaryCtxReset_v2", 0);
        int twice = CALL("cuMemFree_v2", other);
        int info = CALL("cuMemGetInfo_v2", &free_bytes, &total);
        int more = CALL("cuMemAlloc_v2", &other, (size_t)1 << 20);
        printf("destructor %d %d %d %d %d\n", freed, reset, twice, info, more);
        fflush(stdout);
    }
    int main(void) {
        void *context = 0;
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        int started = CALL("cuInit", 0);
        CALL("cuDevicePrimaryCtxRetain", &context, 0);
        CALL("cuCtxSetCurrent", context);
        int first = CALL("cuMemAlloc_v2", &kept, (size_t)100 << 20);
        int second = CALL("cuMemAlloc_v2", &other, (size_t)100 << 20);
        atexit(at_exit);
        printf("main %d %d %d\n", started, first, second);
        return 41;
    }
"#;

#[test]
fn a_sanitized_program_and_its_preload_work_in_a_slice() {
    let Some(compiler) = compiler() else { return };
    let host = Host::new();
    let source = host.folder().join("program.c");
    std::fs::write(
        &source,
        r#"
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        int main(void) {
            int (*init)(unsigned) = dlsym(RTLD_DEFAULT, "cuInit");
            int (*total)(size_t *, int) = dlsym(RTLD_DEFAULT, "cuDeviceTotalMem_v2");
            size_t bytes = 0;
            int first = init(0), second = total(&bytes, 0);
            free(malloc(100));
            printf("%d %d %zu\n", first, second, bytes);
            return 0;
        }
        "#,
    )
    .expect("a file");
    let program = host.folder().join("program");
    // Undefined behaviour's runtime, and a preload that counts calls as profilers do.
    succeeded(&finish(
        Command::new(&compiler)
            .args(["-fsanitize=undefined", "-g", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-ldl"),
    ));
    let profiler = host.folder().join("libprofiler.so");
    let profiler_source = host.folder().join("profiler.c");
    std::fs::write(
        &profiler_source,
        r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        static int calls;
        int cuInit(unsigned flags) {
            int (*next)(unsigned) = dlsym(RTLD_NEXT, "cuInit");
            calls++;
            return next ? next(flags) : -1;
        }
        __attribute__((destructor)) static void done(void) {
            if (calls) fprintf(stderr, "profiler: %d calls\n", calls);
        }
        "#,
    )
    .expect("a file");
    succeeded(&finish(
        Command::new(&compiler)
            .args(["-shared", "-fPIC", "-o"])
            .arg(&profiler)
            .arg(&profiler_source)
            .arg("-ldl"),
    ));
    let output = finish(host.run("1GiB", &program).env("LD_PRELOAD", &profiler));
    assert_eq!(succeeded(&output), format!("0 0 {GIB}\n"));
    assert_eq!(stderr(&output), "profiler: 1 calls\n");

    // The address sanitizer insists on being first, and checks every allocation that the drop-ins make.
    let checked = host.folder().join("checked");
    let built = finish(
        Command::new(&compiler)
            .args(["-fsanitize=address", "-g", "-o"])
            .arg(&checked)
            .arg(&source)
            .arg("-ldl"),
    );
    if !built.status.success() {
        return;
    }
    let runtime = succeeded(&finish(
        Command::new(&compiler).arg("-print-file-name=libasan.so"),
    ));
    let script = "LD_PRELOAD=\"$1:$LD_PRELOAD\" exec \"$2\"";
    let mut command = host.run("1GiB", "sh");
    command.args(["-c", script, "sh", runtime.trim()]).arg(&checked);
    let output = finish(&mut command);
    assert_eq!(stderr(&output), "");
    assert_eq!(succeeded(&output), format!("0 0 {GIB}\n"));
}

/// A library under the names of NVIDIA's OpenCL and of its decoder that is in truth the C++ runtime: with a well-known
/// entry point.
fn opencl(host: &Host) -> Option<std::path::PathBuf> {
    let compiler = compiler()?;
    let real = succeeded(&finish(
        Command::new(compiler).arg("-print-file-name=libstdc++.so.6"),
    ));
    let folder = host.folder().join("vendor");
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("libnvidia-opencl.so.1");
    for file in [&path, &folder.join(DECODER)] {
        std::fs::copy(real.trim(), file).expect("a library");
    }
    Some(path)
}

const DECODER: &str = "libnvcuvid.so.1";

#[test]
fn memory_taken_through_another_library_of_nvidias_is_refused_or_counted() {
    let Some(python) = system_python() else { return };
    let host = Host::new();
    let Some(library) = opencl(&host) else { return };
    let by_name = Path::new("libnvidia-opencl.so.1");
    let start = |policy: &str, library: &Path| {
        let mut command = host.divvy(["run", "--name", "other", "--memory", "1GiB"]);
        command.args(["--policy", policy, "--"]).arg(&python);
        command.arg(python_tenant()).arg("load").arg(library);
        command.env("LD_LIBRARY_PATH", host.folder().join("vendor"));
        Tenant::start_with_line(command)
    };
    // By name, a strict slice finds a library in which there is nothing.
    let (mut tenant, first) = start("strict", Path::new(DECODER));
    assert_eq!(first["entry"], json!(false));
    assert_eq!(tenant.ask("")["ended"], json!(true));
    assert!(tenant.end().success());

    // By path it finds the real one, and the agent finds it. So it does with OpenCL's, past its loader and the layer.
    for library in [library.with_file_name(DECODER).as_path(), by_name] {
        let (mut tenant, first) = start("strict", library);
        assert_eq!(first["entry"], json!(true));
        assert_eq!(tenant.wait().code(), Some(128 + 15));
    }

    // Best effort: it goes on, and is counted.
    let (mut tenant, first) = start("best-effort", by_name);
    assert_eq!(first["entry"], json!(true));
    until("the way past the limiter is counted", || {
        let shown = host.json(["inspect", "other"]).to_string();
        shown.contains("opencl: 1").then_some(())
    });
    assert_eq!(tenant.ask("")["ended"], json!(true));
    assert!(tenant.end().success());
}

/// Divvy as a package installs it, in a folder of the scenario's own.
fn installed(host: &Host) -> std::path::PathBuf {
    let folder = host.folder().join("installed");
    std::fs::create_dir(&folder).expect("a folder");
    for name in [
        "divvy",
        "libdivvy_limit_cuda.so",
        "libdivvy_limit_nvml.so",
        "libdivvy_limit_opencl.so",
        "libdivvy_emulated_cuda.so",
        "libdivvy_emulated_nvml.so",
    ] {
        std::fs::copy(binaries().join(name), folder.join(name)).expect("built");
    }
    folder
}

#[test]
fn an_upgrade_disturbs_no_running_tenant_and_none_of_its_late_workers() {
    let host = Host::new();
    let folder = installed(&host);
    let mut command = host.command(folder.join("divvy"));
    command.args(["run", "--name", "old", "--memory", "1GiB", "--"]);
    let mut tenant = Tenant::start({
        command.arg(probe());
        command
    });
    assert_eq!(tenant.allocate(100 * MIB), Ok(()));

    // A new version takes the old one's place, as packages do it: written beside, then renamed. This one is no library.
    for name in ["libdivvy_limit_cuda.so", "libdivvy_limit_nvml.so"] {
        let beside = folder.join("new");
        std::fs::write(&beside, "a later version").expect("a file");
        std::fs::rename(&beside, folder.join(name)).expect("in its place");
    }
    assert_eq!(tenant.allocate(100 * MIB), Ok(()));
    assert!(tenant.copies());
    // A worker that starts only now finds what its parent has.
    tenant.start_children(1);
    let answers = tenant.ask_children(&format!("allocate {}", 100 * MIB));
    assert!(answers[0]["error"].is_null(), "{answers:?}");
    assert!(host.slice("old").memory_used_bytes >= 300 * MIB);
    assert_eq!(tenant.memory().1, GIB);
    assert!(tenant.end().success());
}

#[test]
fn a_tenant_that_writes_over_its_ledger_harms_no_other_tenant() {
    let Some(python) = system_python() else { return };
    let host = Host::new();
    let mut neighbour = host.probe("neighbour", "1GiB");
    assert_eq!(neighbour.allocate(500 * MIB), Ok(()));
    let mut command = host.divvy(["run", "--name", "vandal", "--memory", "1GiB", "--"]);
    command.arg(python).arg(python_tenant()).arg("corrupt");
    let (mut vandal, first) = Tenant::start_with_line(command);
    assert_eq!(first["error"], json!(0));
    host.until_used("vandal", 600 * MIB);
    assert_eq!(
        vandal.ask("")["error"],
        json!(0),
        "its ledger says that it has memory left"
    );

    assert_eq!(neighbour.memory(), (GIB - 500 * MIB, GIB));
    assert_eq!(neighbour.allocate(500 * MIB), Ok(()));
    assert!(neighbour.allocate(100 * MIB).is_err());
    assert_eq!(host.slice("neighbour").memory_used_bytes, 1000 * MIB);
    assert_eq!(host.slice("vandal").memory_limit_bytes, GIB);
    until("the overuse is found and reported", || {
        let shown = host.json(["ps"]).to_string();
        shown.contains("overuse").then_some(())
    });
    assert_eq!(vandal.ask("")["ended"], json!(true));
}
