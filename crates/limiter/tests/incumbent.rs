//! HAMi-core's observed behaviour, row by row, and our result for the same input.

mod emulated;
mod support;

use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use divvy_abi::*;
use divvy_ledger::Terms;
use divvy_ledger::attach::connect;
use divvy_limiter::{below, tenant};
use emulated::{code, context, cu, get, held};
use support::Slice;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

enum Answer {
    /// In a process of its own, in a slice of 1 GiB on the first of two devices.
    Here(fn(&Slice)),
    /// A test or a bench of that name, in that file of the repository.
    There(&'static str, &'static str),
}
use Answer::{Here, There};

const ROWS: &[(&str, Answer)] = &[
    (
        "cuMemAllocFromPoolAsync of 8 GiB under 1 GiB",
        Here(a_pool_beyond_the_limit),
    ),
    (
        "a 64 GiB array, mipmaps, graph nodes, a second context",
        Here(what_was_not_charged),
    ),
    (
        "external memory by descriptor: 2 GiB of others under 1 GiB, and the slice's own",
        Here(external_memory),
    ),
    (
        "allocations of other processes by IPC, descriptor and pool",
        There(
            "crates/limiter/tests/sharing.rs",
            "fn one_process_pays_for_what_a_slice_shares",
        ),
    ),
    (
        "the variables of a module that is loaded",
        There(
            "crates/limiter/tests/handles.rs",
            "fn a_modules_variables_are_charged",
        ),
    ),
    (
        "cuMemCreate, then release while mapped",
        Here(released_while_mapped),
    ),
    (
        "cuMemAllocAsync over the limit",
        Here(asynchronous_over_the_limit),
    ),
    (
        "cuMemFree of an asynchronous pointer",
        Here(the_other_kind_of_free),
    ),
    ("8 processes racing on 1 GiB", Here(processes_racing)),
    ("kill -9, then a failing allocation", Here(killed_then_refused)),
    (
        "a writer killed in the middle of writing",
        Here(writers_killed_anywhere),
    ),
    (
        "a writer killed after each of its steps",
        There("crates/ledger/tests/crash.rs", "#[test]"),
    ),
    ("CUDA_VISIBLE_DEVICES=1,0", Here(devices_in_another_order)),
    ("no limit set", Here(without_a_slice)),
    ("use above the limit", Here(above_a_lowered_limit)),
    (
        "cuInit and the program's signals and umask",
        Here(nothing_of_the_programs_is_touched),
    ),
    ("10,000 live allocations", Here(many_live_allocations)),
    (
        "cuMemAlloc, cuMemGetInfo and cuLaunchKernel: what they add",
        There("bench/src/bin/intercept/driver.rs", "cuLaunchKernel"),
    ),
    ("fork", Here(a_forked_child)),
    ("limits in the environment", Here(an_edited_environment)),
    (
        "a library file overwritten by an upgrade",
        There(
            "crates/agent/src/launch/stage.rs",
            "fn a_stage_is_made_once_per_version_of_the_file",
        ),
    ),
    ("20 processes starting at once", Here(many_starts)),
];

const TEST: &str = "each_of_its_failures_has_our_answer";

fn again(folder: &std::path::Path, role: &str) -> Command {
    let mut command = divvy_own_process::command(TEST);
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("DIVVY_EMULATED", "h100*2")
        .env("DIVVY_RUN_DIR", folder)
        .env("ROLE", role);
    command
}

#[test]
fn each_of_its_failures_has_our_answer() {
    match std::env::var("ROLE").as_deref() {
        Ok("hold") => return hold(),
        Ok("race") => return race(),
        Ok("hammer") => return hammer(),
        Ok("start") => return start(),
        _ => {}
    }
    if let Ok(row) = std::env::var("ROW") {
        let Here(answer) = &ROWS[row.parse::<usize>().expect("a number")].1 else {
            panic!("a row of ours")
        };
        let uuid = emulated::uuid_in(std::env::var_os("DIVVY_RUN_DIR").expect("set").as_ref());
        let slice = Slice::with(&[(GIB, uuid)], Terms::default());
        below::stand_on(&divvy_emulator::TABLE);
        return answer(&slice);
    }
    for (number, (input, answer)) in ROWS.iter().enumerate() {
        match answer {
            Here(_) => {
                let folder = tempfile::tempdir().expect("a temporary folder");
                let mut command = again(folder.path(), "row");
                if *input == "CUDA_VISIBLE_DEVICES=1,0" {
                    command.env("CUDA_VISIBLE_DEVICES", "1,0");
                }
                let output = command
                    .env("ROW", number.to_string())
                    .output()
                    .expect("it starts");
                let said = [output.stdout, output.stderr].concat();
                assert!(
                    output.status.success(),
                    "{input}: {}",
                    String::from_utf8_lossy(&said)
                );
            }
            There(file, name) => {
                let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("../..")
                    .join(file);
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                assert!(text.contains(name), "{input}: {file} has no {name}");
            }
        }
    }
}

fn join(slice: &Slice) {
    slice.enter();
    cu!(cuInit(0));
    context();
}

fn a_pool_beyond_the_limit(slice: &Slice) {
    join(slice);
    let pool: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
    let mut pointer = 0;
    let result = code!(cuMemAllocFromPoolAsync(
        &raw mut pointer,
        8 << 30,
        pool,
        null_mut()
    ));
    assert_eq!((result, pointer), (CUDA_ERROR_OUT_OF_MEMORY, 0));
    pointer = get!(cuMemAllocFromPoolAsync(1 << 30, pool, null_mut()));
    cu!(cuMemFreeAsync(pointer, null_mut()));
    cu!(cuStreamSynchronize(null_mut()));
    assert_eq!((slice.used(), held()), (0, 0));
}

fn what_was_not_charged(slice: &Slice) {
    slice.pages.grant.set_terms(&Terms {
        context_bytes: 300 << 20,
        ..Terms::default()
    });
    join(slice);
    assert_eq!(slice.used(), 300 * MIB);
    let described = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 131_072,
        Height: 32_768,
        Depth: 0,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 4,
        Flags: 0,
    };
    let (mut array, mut mipmap, mut second) = (null_mut(), null_mut(), null_mut());
    assert_eq!(
        code!(cuArray3DCreate_v2(&raw mut array, &raw const described)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    let result = code!(cuMipmappedArrayCreate(&raw mut mipmap, &raw const described, 4));
    assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY);
    let graph: CUgraph = get!(cuGraphCreate(0));
    let mut wanted = CUDA_MEM_ALLOC_NODE_PARAMS::default();
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.bytesize = 2 << 30;
    let _node: CUgraphNode = get!(cuGraphAddMemAllocNode(
        graph,
        std::ptr::null(),
        0,
        &raw mut wanted
    ));
    let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
    assert_eq!(code!(cuGraphLaunch(exec, null_mut())), CUDA_ERROR_OUT_OF_MEMORY);
    let _two: CUcontext = get!(cuCtxCreate_v2(0, 0));
    let _three: CUcontext = get!(cuCtxCreate_v2(0, 0));
    assert_eq!(
        code!(cuCtxCreate_v2(&raw mut second, 0, 0)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    assert_eq!((slice.used(), held()), (900 * MIB, 0));
}

fn import_external(number: i32, bytes: u64) -> Result<CUexternalMemory, CUresult> {
    let described = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
        type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
        handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1_handle { fd: number },
        size: bytes,
        ..Default::default()
    };
    let mut memory = null_mut();
    code!(cuImportExternalMemory(&raw mut memory, &raw const described)).ok()?;
    Ok(memory)
}

/// A memory file that no process of the slice is charged for. Its importer takes the descriptor over.
fn memory_of_others(bytes: u64) -> i32 {
    // SAFETY: a name that ends; the descriptor is the caller's.
    let number =
        unsafe { libc::memfd_create(c"others".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: the descriptor was just made.
    assert_eq!(unsafe { libc::ftruncate(number, bytes as i64) }, 0);
    number
}

fn external_memory(slice: &Slice) {
    join(slice);
    let large = memory_of_others(2 * GIB);
    for bytes in [2 * GIB, 4096] {
        let refused = import_external(large, bytes);
        assert_eq!(refused, Err(CUDA_ERROR_OUT_OF_MEMORY), "a part keeps the whole");
    }
    // SAFETY: asks about a number.
    let flags = unsafe { libc::fcntl(large, libc::F_GETFD) };
    assert!(flags >= 0, "refused, it is the program's still");
    assert_eq!(slice.used(), 0);
    let memory = import_external(memory_of_others(600 * MIB), 600 * MIB).expect("there is room");
    assert_eq!(slice.used(), 600 * MIB);
    let mut pointer = 0;
    let result = code!(cuMemAlloc_v2(&raw mut pointer, 600 << 20));
    assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY);
    let buffer = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        size: 4096,
        ..Default::default()
    };
    pointer = get!(cuExternalMemoryGetMappedBuffer(memory, &raw const buffer));
    cu!(cuDestroyExternalMemory(memory));
    assert_eq!(slice.used(), 600 * MIB, "mapped still");
    cu!(cuMemFree_v2(pointer));
    assert_eq!(slice.used(), 0);

    let mut properties = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        ..Default::default()
    };
    properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
    let own: CUmemGenericAllocationHandle = get!(cuMemCreate(600 << 20, &raw const properties, 0));
    let mut number = -1i32;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    cu!(cuMemExportToShareableHandle(
        (&raw mut number).cast(),
        own,
        kind,
        0
    ));
    let memory = import_external(number, 600 * MIB).expect("it is paid for");
    assert_eq!((slice.used(), held()), (600 * MIB, 600 * MIB), "once");
    cu!(cuMemRelease(own));
    assert_eq!(
        (slice.used(), held()),
        (600 * MIB, 600 * MIB),
        "the import keeps it"
    );
    cu!(cuDestroyExternalMemory(memory));
    assert_eq!((slice.used(), held()), (0, 0), "at once");
}

fn released_while_mapped(slice: &Slice) {
    join(slice);
    let mut properties = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        ..Default::default()
    };
    properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
    let block: CUmemGenericAllocationHandle = get!(cuMemCreate(1 << 30, &raw const properties, 0));
    let address: CUdeviceptr = get!(cuMemAddressReserve(1 << 30, 0, 0, 0));
    cu!(cuMemMap(address, 1 << 30, 0, block, 0));
    cu!(cuMemRelease(block));
    assert_eq!((slice.used(), held()), (GIB, GIB));
    let mut more = 0;
    assert_eq!(
        code!(cuMemAlloc_v2(&raw mut more, 4096)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    cu!(cuMemUnmap(address, 1 << 30));
    assert_eq!((slice.used(), held()), (0, 0));
}

fn asynchronous_over_the_limit(slice: &Slice) {
    join(slice);
    let mut pointer = 0;
    for bytes in [(1 << 30) + 1, 1 << 40, usize::MAX] {
        let result = code!(cuMemAllocAsync(&raw mut pointer, bytes, null_mut()));
        assert_eq!((result, pointer), (CUDA_ERROR_OUT_OF_MEMORY, 0));
    }
    pointer = get!(cuMemAllocAsync(1 << 30, null_mut()));
    cu!(cuMemFreeAsync(pointer, null_mut()));
    cu!(cuCtxSynchronize());
    assert_eq!(slice.used(), 0);
}

fn the_other_kind_of_free(slice: &Slice) {
    join(slice);
    let pooled: CUdeviceptr = get!(cuMemAllocAsync(64 << 20, null_mut()));
    cu!(cuMemFree_v2(pooled));
    assert_eq!((slice.used(), held()), (0, 0));
    let direct: CUdeviceptr = get!(cuMemAlloc_v2(64 << 20));
    cu!(cuMemFreeAsync(direct, null_mut()));
    cu!(cuCtxSynchronize());
    assert_eq!((slice.used(), held()), (0, 0));
    assert_ne!(code!(cuMemFree_v2(direct)), CUDA_SUCCESS, "freed twice");
    assert_eq!(slice.used(), 0);
}

/// Another process of this slice, in `role`.
fn member(slice: &Slice, role: &str) -> Command {
    let folder = std::env::var_os("DIVVY_RUN_DIR").expect("set");
    let mut command = again(folder.as_ref(), role);
    command
        .env("SOCKET", &slice.socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

fn enter_as_member() {
    let socket = std::env::var_os("SOCKET").expect("the slice's socket");
    below::stand_on(&divvy_emulator::TABLE);
    tenant::enter(vec![connect(socket.as_ref(), 0).expect("the server answers")]);
    cu!(cuInit(0));
    context();
}

fn take_all(bytes: usize) -> Vec<CUdeviceptr> {
    std::iter::from_fn(|| {
        let mut pointer = 0;
        (code!(cuMemAlloc_v2(&raw mut pointer, bytes)) == CUDA_SUCCESS).then_some(pointer)
    })
    .collect()
}

/// Takes as much as it can and keeps it until it is told to end.
fn race() {
    enter_as_member();
    let all = take_all(8 << 20);
    println!("\n@{}", all.len());
    let _told = std::io::stdin().read_line(&mut String::new());
}

fn said(child: &mut std::process::Child) -> String {
    use std::io::{BufRead as _, BufReader};
    let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    lines
        .map(|line| line.expect("text"))
        .find_map(|line| line.strip_prefix('@').map(str::to_owned))
        .expect("it says something")
}

fn processes_racing(slice: &Slice) {
    let mut children: Vec<_> = (0..8)
        .map(|_| member(slice, "race").spawn().expect("it starts"))
        .collect();
    let taken: u64 = children
        .iter_mut()
        .map(|child| said(child).parse::<u64>().expect("a number"))
        .sum();
    assert_eq!((taken * 8 * MIB, slice.used()), (GIB, GIB));
    for child in &mut children {
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
    }
}

/// Holds 600 MiB until it dies.
fn hold() {
    enter_as_member();
    let _held: CUdeviceptr = get!(cuMemAlloc_v2(600 << 20));
    println!("\n@holds");
    let _told = std::io::stdin().read_line(&mut String::new());
}

fn killed_then_refused(slice: &Slice) {
    join(slice);
    let mine: CUdeviceptr = get!(cuMemAlloc_v2(200 << 20));
    let mut child = member(slice, "hold").spawn().expect("it starts");
    assert_eq!(said(&mut child), "holds");
    child.kill().expect("our own child");
    child.wait().expect("it ends");
    let mut pointer = 0;
    assert_eq!(
        code!(cuMemAlloc_v2(&raw mut pointer, 4 << 30)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    // The dead process's memory is available again, and the survivor's allocations are counted.
    let rest: CUdeviceptr = get!(cuMemAlloc_v2(824 << 20));
    assert_eq!(slice.used(), GIB);
    assert_eq!(
        code!(cuMemAlloc_v2(&raw mut pointer, 512)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    cu!(cuMemFree_v2(rest));
    cu!(cuMemFree_v2(mine));
    assert_eq!(slice.used(), 0);
}

/// Allocates and frees until it is killed.
fn hammer() {
    enter_as_member();
    println!("\n@hammers");
    loop {
        let pointer: CUdeviceptr = get!(cuMemAlloc_v2(4 << 20));
        cu!(cuMemFree_v2(pointer));
    }
}

fn writers_killed_anywhere(slice: &Slice) {
    join(slice);
    for _ in 0..10 {
        let mut child = member(slice, "hammer").spawn().expect("it starts");
        assert_eq!(said(&mut child), "hammers");
        child.kill().expect("our own child");
        child.wait().expect("it ends");
        let all: CUdeviceptr = get!(cuMemAlloc_v2(1 << 30));
        assert_eq!(slice.used(), GIB);
        cu!(cuMemFree_v2(all));
    }
    assert_eq!(slice.used(), 0);
}

fn devices_in_another_order(slice: &Slice) {
    slice.enter();
    cu!(cuInit(0));
    // The slice's device is the second now; the first does not concern it.
    let mut foreign = null_mut();
    assert_eq!(
        code!(cuCtxCreate_v2(&raw mut foreign, 0, 0)),
        CUDA_ERROR_INVALID_DEVICE
    );
    let _own: CUcontext = get!(cuCtxCreate_v2(0, 1));
    let total: usize = get!(cuDeviceTotalMem_v2(1));
    assert_eq!(total as u64, GIB);
    let mut pointer = 0;
    assert_eq!(
        code!(cuMemAlloc_v2(&raw mut pointer, (1 << 30) + 1)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    pointer = get!(cuMemAlloc_v2(1 << 30));
    assert_eq!(slice.used(), GIB);
    cu!(cuMemFree_v2(pointer));
}

fn without_a_slice(_: &Slice) {
    cu!(cuInit(0));
    context();
    let shown: usize = get!(cuDeviceTotalMem_v2(0));
    let mut real = 0;
    // SAFETY: a valid out-parameter; past the limiter.
    assert!(unsafe { (divvy_emulator::TABLE.cuDeviceTotalMem_v2)(&raw mut real, 0) }.is_success());
    assert!(shown > 0 && shown == real);
    let pointer: CUdeviceptr = get!(cuMemAlloc_v2(2 << 30));
    cu!(cuMemFree_v2(pointer));
}

fn above_a_lowered_limit(slice: &Slice) {
    join(slice);
    let pointer: CUdeviceptr = get!(cuMemAlloc_v2(900 << 20));
    slice.pages.grant.set_memory_limit_bytes(100 << 20);
    let (mut free, mut total) = (1, 1);
    cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    assert_eq!((free, total as u64), (0, 100 * MIB));
    let mut more = 0;
    assert_eq!(code!(cuMemAlloc_v2(&raw mut more, 512)), CUDA_ERROR_OUT_OF_MEMORY);
    cu!(cuMemFree_v2(pointer));
    cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    assert_eq!((free as u64, slice.used()), (100 * MIB, 0));
}

fn nothing_of_the_programs_is_touched(slice: &Slice) {
    let state = || {
        // Of this thread only: while the limiter's thread starts, the thread that starts it has all signals blocked.
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
        // SigQ counts the signals of all processes of the user.
        let ours =
            |line: &&str| (line.starts_with("Sig") && !line.starts_with("SigQ")) || line.starts_with("Umask");
        status.lines().filter(ours).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = state();
    assert!(before.iter().any(|line| line.starts_with("SigCgt")));
    join(slice);
    let pointer: CUdeviceptr = get!(cuMemAlloc_v2(1 << 20));
    cu!(cuMemFree_v2(pointer));
    assert_eq!(state(), before);
}

fn many_live_allocations(slice: &Slice) {
    join(slice);
    let all: Vec<CUdeviceptr> = (0..20_000).map(|_| get!(cuMemAlloc_v2(512))).collect();
    // In the device's pages.
    assert_eq!((slice.used(), held()), (10 << 20, 10 << 20));
    all.into_iter().for_each(|pointer| cu!(cuMemFree_v2(pointer)));
    assert_eq!(slice.used(), 0);
}

fn a_forked_child(slice: &Slice) {
    join(slice);
    let pointer: CUdeviceptr = get!(cuMemAlloc_v2(1 << 20));
    let pool: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
    // SAFETY: the child calls nothing but the limiter and _exit, and this is the only thread that uses either.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut own = 0;
        let refused = [
            code!(cuMemAlloc_v2(&raw mut own, 4096)),
            code!(cuMemAllocAsync(&raw mut own, 4096, null_mut())),
            code!(cuMemAllocFromPoolAsync(&raw mut own, 4096, pool, null_mut())),
        ]
        .iter()
        .all(|code| !code.is_success());
        let _freed = code!(cuMemFree_v2(pointer));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: our own child; a valid out-parameter.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((status, slice.used()), (0, 2 * MIB));
    cu!(cuMemFree_v2(pointer));
    assert_eq!(slice.used(), 0);
}

fn an_edited_environment(slice: &Slice) {
    join(slice);
    // The limit stands in a page that this process cannot write.
    let _edited = Command::new("true").env("DIVVY_MEMORY", "64GiB").status();
    let mut pointer = 0;
    assert_eq!(
        code!(cuMemAlloc_v2(&raw mut pointer, (1 << 30) + 1)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    let Some(tenant::Tenant::Member(member)) = tenant::known() else {
        panic!("a member")
    };
    assert_eq!(member.first().memory_limit_bytes(), GIB);
}

fn start() {
    enter_as_member();
    println!("\n@started");
}

fn many_starts(slice: &Slice) {
    let begin = Instant::now();
    let mut children: Vec<_> = (0..20)
        .map(|_| member(slice, "start").spawn().expect("it starts"))
        .collect();
    for child in &mut children {
        assert!(child.wait().expect("it ends").success());
    }
    // A guard against hanging, not a measurement: for that there is `cargo xtask bench startup`.
    assert!(begin.elapsed() < Duration::from_secs(120));
    assert_eq!(slice.used(), 0);
}
