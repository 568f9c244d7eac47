//! The limiter in real processes of a real slice, over the driver that does nothing.

mod support;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use divvy_abi::{
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_NOT_READY, CUDA_SUCCESS,
    CUcontext, CUdevice, CUdeviceptr, CUresult,
};
use divvy_ledger::GrantSpec;
use divvy_ledger::attach::{Door, PageServer, Pages, wire};
use support::{
    Library, child, emulated_driver, is_child, libraries, limiter, null_driver, nvidia_driver, quiet_child,
};

const MIB: usize = 1 << 20;
const LIMIT: u64 = 1 << 30;

struct Slice {
    pages: Pages,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

/// Serves `answer` on a socket.
fn listen(answer: impl Fn(UnixStream) + Send + 'static) -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("attach.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    (socket, folder)
}

fn slice() -> Slice {
    let page_server = Arc::new(PageServer::new());
    let serving = Arc::clone(&page_server);
    let (socket, folder) = listen(move |stream| {
        let _served = serving.serve(&stream, Door::Container);
    });
    let pages = Pages::create(&GrantSpec {
        memory_limit_bytes: LIMIT,
        // Of whichever device there is.
        device_uuid: [0; 16],
        slice_id: "s",
        slice_name: "s",
        ..GrantSpec::default()
    })
    .expect("pages");
    page_server.hold(&pages).expect("the page server takes them");
    Slice {
        pages,
        socket,
        _folder: folder,
    }
}

/// The limiter, as a program has it.
struct Program(Library);

impl Program {
    fn new() -> Self {
        Self(Library::load(&limiter()))
    }

    fn init(&self) -> CUresult {
        // SAFETY: the export has this type.
        unsafe {
            self.0
                .function::<unsafe extern "C" fn(u32) -> CUresult>(c"cuInit")(0)
        }
    }

    fn allocate(&self, bytes: usize) -> Result<CUdeviceptr, CUresult> {
        let mut pointer = 0;
        // SAFETY: the export has this type; a valid out-parameter.
        let result = unsafe {
            self.0
                .function::<unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult>(c"cuMemAlloc_v2")(
                &raw mut pointer,
                bytes,
            )
        };
        result.ok().map(|()| pointer)
    }

    fn free(&self, pointer: CUdeviceptr) -> CUresult {
        // SAFETY: the export has this type.
        unsafe {
            self.0
                .function::<unsafe extern "C" fn(CUdeviceptr) -> CUresult>(c"cuMemFree_v2")(
                pointer
            )
        }
    }
}

fn in_slice(name: &str, socket: &Path) {
    quiet_child(name, &[("DIVVY_DRIVER", &null_driver()), ("DIVVY_SLICE", socket)]);
}

#[test]
fn a_slice_holds_and_its_processes_bytes_return() {
    if is_child() {
        let program = Program::new();
        assert_eq!(program.init(), CUDA_SUCCESS);
        let pointers: Vec<_> = (0..1024)
            .map(|_| program.allocate(MIB).expect("it fits"))
            .collect();
        assert_eq!(program.allocate(512), Err(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(program.free(pointers[0]), CUDA_SUCCESS);
        assert!(program.allocate(MIB).is_ok());
        // The rest goes with the process.
        return;
    }
    let slice = slice();
    for _ in 0..3 {
        in_slice("a_slice_holds_and_its_processes_bytes_return", &slice.socket);
    }
    slice.pages.ledger.reap().expect("the ledger is sound");
    assert_eq!(slice.pages.ledger.total_used(), 0);
}

#[test]
fn a_slice_that_cannot_be_joined_is_never_unlimited() {
    const NAME: &str = "a_slice_that_cannot_be_joined_is_never_unlimited";
    if is_child() {
        let program = Program::new();
        assert_eq!(program.init(), CUDA_ERROR_SYSTEM_NOT_READY);
        assert_eq!(program.allocate(MIB), Err(CUDA_ERROR_SYSTEM_NOT_READY));
        assert_eq!(program.init(), CUDA_ERROR_SYSTEM_NOT_READY);
        return;
    }
    in_slice(NAME, Path::new("/nonexistent/attach.sock"));
    let (talks_nonsense, _folder) = listen(|mut stream| {
        use std::io::Write as _;
        let _sent = stream.write_all(&[b'?'; 256]);
    });
    in_slice(NAME, &talks_nonsense);
    let (hangs_up, _folder) = listen(drop);
    in_slice(NAME, &hangs_up);
    // A page server that has no pages yet.
    let page_server = PageServer::new();
    let (empty, _folder) = listen(move |stream| {
        let _served = page_server.serve(&stream, Door::Container);
    });
    in_slice(NAME, &empty);
}

#[test]
fn another_version_of_the_pages_is_a_mismatch() {
    const NAME: &str = "another_version_of_the_pages_is_a_mismatch";
    if is_child() {
        let program = Program::new();
        assert_eq!(program.init(), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
        assert_eq!(program.allocate(MIB), Err(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH));
        return;
    }
    let (newer, _folder) = listen(|mut stream| {
        use std::io::{Read as _, Write as _};
        let mut request = [0; wire::MESSAGE_BYTES];
        let _received = stream.read_exact(&mut request);
        let mut reply = wire::Reply {
            status: wire::Status::Done,
            pid: 0,
            accounts: 1,
        }
        .encode();
        // Magic, then version, as in every version of the protocol.
        reply[8] = reply[8].wrapping_add(1);
        let _sent = stream.write_all(&reply);
    });
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    quiet_child(
        NAME,
        &[
            ("DIVVY_DRIVER", &null_driver()),
            ("DIVVY_SLICE", &newer),
            ("DIVVY_LOG", log.path()),
        ],
    );
    let said = std::fs::read_to_string(log.path()).expect("the log is there");
    assert!(said.contains("version"), "{said}");
}

/// What a program may notice of an importer.
#[expect(clippy::disallowed_methods, reason = "asks for the handlers and sets none")]
fn traces() -> (Vec<String>, Option<String>, Vec<usize>, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd")
        .expect("procfs is mounted")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        // The one that reads this folder.
        .filter(|target| !target.ends_with("/fd"))
        .collect();
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs is mounted");
    let mask = status
        .lines()
        .find(|line| line.starts_with("Umask:"))
        .map(str::to_owned);
    let handlers = (1..=31)
        .map(|signal| {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: only asks; a valid out-parameter.
            unsafe {
                libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
                action.assume_init().sa_sigaction
            }
        })
        .collect();
    let threads = std::fs::read_dir("/proc/self/task")
        .expect("procfs is mounted")
        .count();
    (descriptors, mask, handlers, threads)
}

#[test]
fn the_program_is_left_as_it_was() {
    if is_child() {
        let before = traces();
        let program = Program::new();
        assert_eq!(program.init(), CUDA_SUCCESS);
        let pointer = program.allocate(MIB).expect("it fits");
        assert_eq!(program.free(pointer), CUDA_SUCCESS);
        assert_eq!(traces(), before);
        return;
    }
    let slice = slice();
    in_slice("the_program_is_left_as_it_was", &slice.socket);
}

#[test]
fn processes_racing_get_the_limit_exactly() {
    const NAME: &str = "processes_racing_get_the_limit_exactly";
    if is_child() {
        let program = Program::new();
        assert_eq!(program.init(), CUDA_SUCCESS);
        let granted = std::iter::from_fn(|| program.allocate(16 * MIB).ok()).count();
        // Told to the parent through the exit of a process that holds on until all have asked.
        std::fs::write(
            std::env::var_os("DIVVY_LOG")
                .map(|log| Path::new(&log).join(std::process::id().to_string()))
                .expect("set"),
            granted.to_string(),
        )
        .expect("it is writable");
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new()).expect("a pipe");
        return;
    }
    let slice = slice();
    // A folder where a log would be: the limiter cannot write there, and says nothing about it.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut racers: Vec<_> = (0..8)
        .map(|_| {
            divvy_own_process::command(NAME)
                .env("DIVVY_TEST_CHILD", libraries())
                .env("DIVVY_DRIVER", null_driver())
                .env("DIVVY_SLICE", &slice.socket)
                .env("DIVVY_LOG", folder.path())
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("the child starts")
        })
        .collect();
    let told = || -> Vec<u64> {
        std::fs::read_dir(folder.path())
            .expect("it is there")
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok()?.parse().ok())
            .collect()
    };
    // A guard against hanging, not a measurement.
    for _ in 0..600 {
        if told().len() == racers.len() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(
        told().iter().sum::<u64>(),
        LIMIT / (16 * MIB as u64),
        "{:?}",
        told()
    );
    assert_eq!(slice.pages.ledger.total_used(), LIMIT);
    for racer in &mut racers {
        racer.kill().expect("it lives");
        racer.wait().expect("our own child");
    }
    slice.pages.ledger.reap().expect("the ledger is sound");
    assert_eq!(slice.pages.ledger.total_used(), 0);
}

#[test]
fn without_a_slice_nothing_is_limited() {
    const NAME: &str = "without_a_slice_nothing_is_limited";
    if is_child() {
        let program = Program::new();
        assert_eq!(program.init(), CUDA_SUCCESS);
        assert!(program.allocate(1 << 40).is_ok());
        return;
    }
    let output = child(NAME, &[("DIVVY_DRIVER", &null_driver())]);
    assert!(output.status.success(), "{output:?}");
    quiet_child(
        NAME,
        &[("DIVVY_DRIVER", &null_driver()), ("DIVVY_SLICE", Path::new(""))],
    );
}

/// All of it over a driver with devices: the emulated one, and on a machine with a GPU the one that `DIVVY_TEST_DRIVER`
/// names.
#[test]
fn over_a_driver_with_devices() {
    const NAME: &str = "over_a_driver_with_devices";
    if is_child() {
        let program = Program::new();
        let export = |name| program.0.address(name);
        assert!(!export(c"cuCtxCreate_v2").is_null());
        // SAFETY: the exports have these types; valid out-parameters.
        unsafe {
            type Retain = unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult;
            type SetCurrent = unsafe extern "C" fn(CUcontext) -> CUresult;
            type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> CUresult;
            type Reset = unsafe extern "C" fn(CUdevice) -> CUresult;
            let mut context = std::ptr::null_mut();
            assert_eq!(program.init(), CUDA_SUCCESS);
            let retain = program.0.function::<Retain>(c"cuDevicePrimaryCtxRetain");
            assert_eq!(retain(&raw mut context, 0), CUDA_SUCCESS);
            let set_current = program.0.function::<SetCurrent>(c"cuCtxSetCurrent");
            assert_eq!(set_current(context), CUDA_SUCCESS);

            let info = || {
                let (mut free, mut total) = (0, 0);
                let info = program.0.function::<Info>(c"cuMemGetInfo_v2");
                assert_eq!(info(&raw mut free, &raw mut total), CUDA_SUCCESS);
                (free as u64, total as u64)
            };
            assert_eq!(info(), (LIMIT, LIMIT));
            let half = program.allocate(512 * MIB).expect("it fits");
            assert_eq!(info(), (LIMIT / 2, LIMIT));
            assert_eq!(program.allocate(513 * MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
            assert_eq!(program.free(half), CUDA_SUCCESS);
            assert_eq!(info(), (LIMIT, LIMIT));

            // A context that is reset takes its allocations along, and only those.
            for _ in 0..100 {
                program.allocate(MIB).expect("it fits");
            }
            assert_eq!(info().0, LIMIT - 100 * MIB as u64);
            let reset = program.0.function::<Reset>(c"cuDevicePrimaryCtxReset_v2");
            assert_eq!(reset(0), CUDA_SUCCESS);
            assert_eq!(retain(&raw mut context, 0), CUDA_SUCCESS);
            assert_eq!(set_current(context), CUDA_SUCCESS);
            assert_eq!(info(), (LIMIT, LIMIT));
        }
        return;
    }
    let emulated_devices = tempfile::tempdir().expect("a temporary folder");
    let named = std::env::var_os("DIVVY_TEST_DRIVER").map(PathBuf::from);
    for driver in [Some(emulated_driver()), named].into_iter().flatten() {
        let slice = slice();
        let output = child(
            NAME,
            &[
                ("DIVVY_DRIVER", &driver),
                ("DIVVY_SLICE", &slice.socket),
                ("DIVVY_RUN_DIR", emulated_devices.path()),
            ],
        );
        assert!(output.status.success(), "{}: {output:?}", driver.display());
        slice.pages.ledger.reap().expect("the ledger is sound");
        assert_eq!(slice.pages.ledger.total_used(), 0);
    }
}

/// NVIDIA's own library below, in a slice, on a machine that may have no device: its answers come through.
#[test]
fn over_a_driver_of_nvidias_in_a_slice() {
    const NAME: &str = "over_a_driver_of_nvidias_in_a_slice";
    if is_child() {
        let program = Program::new();
        let driver = std::env::var_os("DIVVY_DRIVER").expect("set by the parent");
        type Init = unsafe extern "C" fn(u32) -> CUresult;
        // SAFETY: the export has this type.
        let bare = unsafe { Library::load(Path::new(&driver)).function::<Init>(c"cuInit")(0) };
        assert_eq!(program.init(), bare);
        if bare != CUDA_SUCCESS {
            // Without a device there is nothing to be had, and nothing is charged.
            assert!(program.allocate(MIB).is_err());
            assert!(!program.free(0x1000).is_success());
        }
        return;
    }
    let Some(driver) = nvidia_driver() else {
        assert!(
            std::env::var_os("DIVVY_REQUIRE_ALL").is_none(),
            "`cargo xtask setup` brings NVIDIA's driver library"
        );
        return;
    };
    let slice = slice();
    quiet_child(NAME, &[("DIVVY_DRIVER", &driver), ("DIVVY_SLICE", &slice.socket)]);
    slice.pages.ledger.reap().expect("the ledger is sound");
    assert_eq!(slice.pages.ledger.total_used(), 0);
}
