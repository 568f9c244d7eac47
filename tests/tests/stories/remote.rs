//! Programs without a device: a worker in the slice makes their CUDA calls, and they have nothing but a socket and a
//! region of shared memory.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use divvy_tests::build::binaries;
use divvy_tests::clients::{probe, python, python_example, rust_client, system_python};
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::{processes, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A slice's worker, and the folder with the driver that its programs find.
struct Worker {
    host: Host,
    process: Child,
    socket: PathBuf,
    folder: PathBuf,
}

impl Worker {
    /// In a slice of so much memory.
    fn start(memory: &str) -> Self {
        let host = Host::new();
        let folder = host.folder().join("remote");
        fs::create_dir(&folder).expect("a folder");
        for name in ["libcuda.so", "libcuda.so.1"] {
            let library = binaries().join("libdivvy_remote_cuda.so");
            std::os::unix::fs::symlink(library, folder.join(name)).expect("a link");
        }
        let socket = host.folder().join("worker.sock");
        let process = host
            .run(memory, binaries().join("divvy-worker"))
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()
            .expect("divvy starts");
        wait::until("the worker listens", || socket.exists().then_some(()));
        Self {
            host,
            process,
            socket,
            folder,
        }
    }

    /// A program without a device.
    fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.host.command(program);
        command
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("DIVVY_REMOTE", &self.socket)
            // What would lead to a device if anything here looked for one.
            .env_remove("DIVVY_EMULATED");
        command
    }

    fn probe(&self) -> Tenant {
        Tenant::start(self.program(probe()))
    }

    /// The processes that serve programs.
    fn serving(&self) -> Vec<u32> {
        let ours = processes::with_environment("DIVVY_RUN_DIR", &self.host.run_directory());
        let serves = |pid: &u32| {
            processes::arguments(*pid)
                .get(1)
                .is_some_and(|word| word == "--serve")
        };
        ours.into_iter().filter(serves).collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

#[test]
fn numba_programs_compute_what_they_do_on_a_device_of_their_own() {
    let Some(python) = python() else { return };
    let worker = Worker::start("1GiB");
    for example in ["black_scholes.py", "kmeans.py", "neural_net.py"] {
        let output = finish(worker.program(&python).arg(python_example(example)));
        let said = succeeded(&output);
        assert!(said.contains(": right"), "{example}: {said}");
    }
    wait::until("nothing serves any more", || {
        worker.serving().is_empty().then_some(())
    });
}

/// Graphs by capture, by cuda-core's builder and node by node, with functions of the program that the device's work calls.
#[test]
fn graphs_and_functions_of_the_program_run() {
    let Some(python) = python() else { return };
    let worker = Worker::start("1GiB");
    let steps = ["--steps", "5"];
    let output = finish(
        worker
            .program(&python)
            .arg(python_example("graphs.py"))
            .args(steps),
    );
    let said = succeeded(&output);
    assert_eq!(said.matches("5 launches, right").count(), 3, "{said}");
}

#[test]
fn a_program_sees_its_slice_and_is_refused_what_is_beyond_it() {
    let worker = Worker::start("1GiB");
    let run = |amount: &str| -> Value {
        let words = ["--json", "--allocate", amount, "--job", "saxpy"];
        let output = finish(worker.program(rust_client()).args(words));
        serde_json::from_str(&succeeded(&output)).expect("a report")
    };
    let within = run("900MiB");
    assert_eq!(
        within["memory_total_bytes"].as_u64(),
        Some(1024 * MIB),
        "{within}"
    );
    assert_eq!(within["allocation"]["error"], Value::Null, "{within}");
    assert_eq!(within["jobs"][0]["correct"], true, "{within}");
    let beyond = run("2GiB");
    assert_eq!(
        beyond["allocation"]["error"], "CUDA_ERROR_OUT_OF_MEMORY",
        "{beyond}"
    );
}

/// One process's memory is the slice's, and comes back however the process ends.
#[test]
fn programs_of_a_slice_share_its_limit_and_a_killed_one_gives_back() {
    let worker = Worker::start("1GiB");
    let (mut first, mut second) = (worker.probe(), worker.probe());
    assert_eq!(first.allocate(600 * MIB), Ok(()));
    assert_eq!(
        second.allocate(600 * MIB),
        Err("CUDA_ERROR_OUT_OF_MEMORY".to_owned())
    );
    let maps = fs::read_to_string(format!("/proc/{}/maps", first.pid())).expect("its maps");
    assert!(maps.contains("libdivvy_remote_cuda"), "{maps}");
    assert!(!maps.contains("libdivvy_emulated"), "it has no device: {maps}");
    assert_eq!(worker.serving().len(), 2);
    first.signal(Signal::KILL);
    wait::until("its memory is back", || second.allocate(600 * MIB).ok());
    wait::until("one serves", || (worker.serving().len() == 1).then_some(()));
}

#[test]
fn the_end_of_what_serves_a_program_is_an_error_in_that_program_alone() {
    let worker = Worker::start("1GiB");
    let mut first = worker.probe();
    assert_eq!(first.allocate(10 * MIB), Ok(()));
    let of_first = worker.serving();
    let mut second = worker.probe();
    assert_eq!(second.allocate(10 * MIB), Ok(()));
    for pid in &of_first {
        let pid = Pid::from_raw(i32::try_from(*pid).expect("a number")).expect("a process");
        kill_process(pid, Signal::KILL).expect("killed");
    }
    assert_eq!(of_first.len(), 1);
    assert_eq!(
        first.allocate(10 * MIB),
        Err("CUDA_ERROR_DEVICE_UNAVAILABLE".to_owned())
    );
    assert!(second.copies());
    assert_eq!(
        second.allocate(900 * MIB),
        Ok(()),
        "the first one's memory is back"
    );
}

#[test]
fn without_a_worker_there_is_no_device() {
    let worker = Worker::start("1GiB");
    let mut command = worker.program(rust_client());
    command.env("DIVVY_REMOTE", worker.host.folder().join("nowhere"));
    let output = finish(command.args(["--json", "--allocate", "1MiB", "--job", "saxpy"]));
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("DEVICE_UNAVAILABLE"), "{said}");
}

/// Copies to the device and back, as each line says: from what memory, and how many bytes.
const COPIES: &str = r"
import ctypes as c, json, os, sys
cuda, context, device = c.CDLL('libcuda.so.1'), c.c_void_p(), c.c_uint64()
def say(**facts):
    print(json.dumps(facts), flush=True)
def need(code):
    if code: raise SystemExit(f'CUDA error {code}')
need(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0) or cuda.cuCtxSetCurrent(context))
need(cuda.cuMemAlloc_v2(c.byref(device), c.c_size_t(1 << 20)))
def memory(kind, size):
    if kind in ('message', 'staged'):
        return c.create_string_buffer(size)
    # More than a worker pins is memory that both share, and no more.
    own = c.c_void_p()
    need(cuda.cuMemHostAlloc(c.byref(own), c.c_size_t(size if kind == 'pinned' else 17 << 30), 0))
    return (c.c_char * size).from_address(own.value)
say(pid=os.getpid())
for line in sys.stdin:
    kind, size = line.split()
    buffer, pattern = memory(kind, int(size)), os.urandom(int(size))
    c.memmove(buffer, pattern, len(pattern))
    need(cuda.cuMemcpyHtoD_v2(device, buffer, c.c_size_t(len(pattern))))
    c.memset(buffer, 0, len(pattern))
    need(cuda.cuMemcpyDtoH_v2(buffer, device, c.c_size_t(len(pattern))))
    say(right=bytes(buffer)[:len(pattern)] == pattern)
";

/// The metrics that follow the bytes of each path of copies, and how often a byte was copied on average.
#[test]
fn copies_are_in_the_metrics_by_their_path() {
    let Some(python) = system_python() else { return };
    let worker = Worker::start("1GiB");
    let mut program = worker.program(python);
    program.args(["-c", COPIES]);
    let mut program = Tenant::start(program);
    let figure = |name: &str| -> Option<f64> {
        let metrics = worker.host.get("/metrics");
        let line = metrics.lines().find(|line| {
            let is_comment = line.starts_with('#');
            !is_comment && name.split(' ').all(|part| line.contains(part))
        })?;
        line.rsplit_once(' ')?.1.parse().ok()
    };
    assert_eq!(
        figure("divvy_slice_copied_bytes_total"),
        None,
        "nothing was copied yet"
    );
    let (mut bytes, mut copies) = (0.0, 0.0);
    let paths = [
        ("message", 1000_u32, 4.0),
        ("staged", 1_000_000, 2.0),
        ("shared", 500_000, 1.0),
        ("pinned", 900_000, 0.0),
    ];
    let mut expected = [
        ("message", 0.0),
        ("staged", 0.0),
        ("shared", 0.0),
        ("pinned", 0.0),
    ];
    for (at, (path, size, each)) in paths.into_iter().enumerate() {
        let said = program.ask(&format!("{path} {size}"));
        assert_eq!(said["right"], true, "{path}: {said}");
        // There and back.
        let moved = 2.0 * f64::from(size);
        expected[at].1 = moved;
        bytes += moved;
        copies += moved * each;
        wait::until(&format!("the metrics have {path}"), || {
            (figure(&format!("divvy_slice_copied_bytes_total path=\"{path}\"")) == Some(moved)).then_some(())
        });
        for (path, moved) in expected {
            let counted = figure(&format!("divvy_slice_copied_bytes_total path=\"{path}\""));
            assert_eq!(counted, Some(moved), "{path}");
        }
        let average = figure("divvy_slice_copies_per_byte").expect("a figure");
        assert!((average - copies / bytes).abs() < 1e-9, "{path}: {average}");
    }
    assert!(program.end().success());
}
