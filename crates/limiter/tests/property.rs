//! Random sequences of every way to allocate and to free, by threads of several processes of one slice, against a
//! reference: the ledger is never below what is allocated and live nor above the limit, equals what the device has
//! handed out once everybody has synchronised and trimmed, and is 0 at the end.

mod emulated;
mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, RwLock};

use divvy_abi::*;
use divvy_ledger::Terms;
use divvy_ledger::attach::connect;
use divvy_limiter::below;
use divvy_limiter::tenant::{self, Tenant};
use emulated::{code, cu, get, held};
use support::Slice;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 << 20;
const LIMIT: u64 = 1 << 30;
const PROCESSES: u64 = 3;
const THREADS: u64 = 3;
const PHASES: u64 = 5;
const STEPS: u64 = 200;

/// Bytes that this process has allocated and not freed by a call, in whole units as it asked for them.
static LIVE: AtomicU64 = AtomicU64::new(0);
/// Of that, managed memory, which the emulated device does not count: charged bytes.
static MANAGED: AtomicU64 = AtomicU64::new(0);
/// Allocations that others made and that were opened here.
static OPENED: AtomicU64 = AtomicU64::new(0);
/// Of pointers the same.
static OPENED_POINTERS: AtomicU64 = AtomicU64::new(0);
/// Of pools' pointers.
static OPENED_POOLED: AtomicU64 = AtomicU64::new(0);
/// Of descriptors as external memory.
static OPENED_EXTERNAL: AtomicU64 = AtomicU64::new(0);
/// Steps are made under the reading half; what must hold between them is looked at under the writing half.
static STEP: RwLock<()> = RwLock::new(());

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// Mostly some pages, often less than one, now and then just about one.
    fn bytes(&mut self) -> u64 {
        match self.below(10) {
            0..3 => 1 + self.below(100_000),
            3 | 4 => 1 + self.below(PAGE / 2),
            5 => PAGE * self.below(3) + PAGE / 2 * self.below(2) + 1 + self.below(1024),
            _ => MIB + 1 + self.below(48 * MIB),
        }
    }
}

/// Something that a thread has allocated.
enum Thing {
    Pointer(CUdeviceptr, u64),
    Managed(CUdeviceptr, u64),
    /// Handle references, mappings and a descriptor that others may import.
    Block(
        Vec<CUmemGenericAllocationHandle>,
        Vec<(CUdeviceptr, usize)>,
        Option<OwnedFd>,
        u64,
    ),
    /// Another thread's or process's physical memory, and a mapping of it.
    Foreign(CUmemGenericAllocationHandle, Option<CUdeviceptr>),
    /// Another process's memory, opened by its IPC handle.
    Opened(CUdeviceptr),
    /// Memory of a pool, of whichever process.
    Joined(CUdeviceptr),
    /// A descriptor's memory, as external memory: what is mapped of it, and its handle unless that was given up.
    External(Vec<CUdeviceptr>, Option<CUexternalMemory>),
    Module(CUmodule, u64),
    Library(CUlibrary, u64),
    Array(CUarray, u64),
    Mipmap(CUmipmappedArray, u64),
}

struct Worker {
    random: Random,
    streams: Vec<CUstream>,
    pool: CUmemoryPool,
    /// What others import the pool by.
    name: OwnedFd,
    things: Vec<Thing>,
}

/// The seed of this run: `DIVVY_PROPERTY_SEED` where it is set. What each thread does follows from it; how the threads meet
/// does not, so a failure may take a few runs to come again.
fn seed() -> u64 {
    let said = std::env::var("DIVVY_PROPERTY_SEED").ok();
    said.map_or(0, |text| text.parse().expect("a number"))
}

/// Whether pools' pointers are passed between processes too: not yet exact in every run, least of all on a busy machine.
fn passes_pooled() -> bool {
    std::env::var_os("DIVVY_PROPERTY_POOLED").is_some()
}

unsafe extern "C" fn doze(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(1));
}

fn paged(bytes: u64) -> u64 {
    if bytes > PAGE / 2 {
        bytes.next_multiple_of(PAGE)
    } else {
        bytes.next_multiple_of(512)
    }
}

impl Worker {
    fn new(seed: u64) -> Self {
        let mut properties = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let pool: CUmemoryPool = get!(cuMemPoolCreate(&raw const properties));
        let mut number = -1i32;
        let (out, kind) = (&raw mut number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        cu!(cuMemPoolExportToShareableHandle(out.cast(), pool, kind, 0));
        // SAFETY: the driver has just made it, for us to close.
        let name = unsafe { OwnedFd::from_raw_fd(number) };
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            streams: vec![
                get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)),
                null_mut(),
                get!(cuStreamCreate(0)),
            ],
            pool,
            name,
            things: Vec::new(),
        }
    }

    fn stream(&mut self) -> CUstream {
        let at = self.random.below(self.streams.len() as u64);
        self.streams[at as usize]
    }

    fn got(&mut self, result: CUresult, bytes: u64, thing: impl FnOnce() -> Thing) {
        match result {
            CUDA_SUCCESS => {
                LIVE.fetch_add(bytes, Ordering::Relaxed);
                let thing = thing();
                if let Thing::Managed(_, bytes) = thing {
                    MANAGED.fetch_add(paged(bytes), Ordering::Relaxed);
                }
                self.things.push(thing);
            }
            code => assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    fn step(&mut self) {
        let bytes = self.random.bytes();
        let stream = self.stream();
        let (mut pointer, size) = (0, bytes as usize);
        match self.random.below(31) {
            0 | 1 => {
                let result = code!(cuMemAlloc_v2(&raw mut pointer, size));
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
                if result == CUDA_SUCCESS && self.random.below(2) == 0 {
                    self.post_pointer(pointer);
                }
            }
            2 => {
                let (mut pitch, width) = (0, 1 + self.random.below(5000) as usize);
                let height = 1 + self.random.below(4000) as usize;
                let result = code!(cuMemAllocPitch_v2(
                    &raw mut pointer,
                    &raw mut pitch,
                    width,
                    height,
                    4
                ));
                let bytes = (pitch * height) as u64;
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
            }
            3 => {
                let result = code!(cuMemAllocManaged(&raw mut pointer, size, CU_MEM_ATTACH_GLOBAL.0));
                self.got(result, bytes, || Thing::Managed(pointer, bytes));
            }
            4 | 5 => {
                let result = match self.random.below(2) {
                    0 => code!(cuMemAllocAsync(&raw mut pointer, size, stream)),
                    _ => code!(cuMemAllocAsync_ptsz(&raw mut pointer, size, stream)),
                };
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
            }
            6 => {
                let result = code!(cuMemAllocFromPoolAsync(&raw mut pointer, size, self.pool, stream));
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
                if result == CUDA_SUCCESS && self.random.below(2) == 0 && passes_pooled() {
                    self.post_pooled(pointer);
                }
            }
            7 | 8 => self.block(bytes.next_multiple_of(PAGE)),
            9 => self.array(),
            10 => self.graph(stream),
            11 => self.capture(),
            12 => self.nonsense(),
            13 => match self.random.below(5) {
                0 => cu!(cuStreamSynchronize(stream)),
                1 => cu!(cuMemPoolTrimTo(self.pool, 0)),
                2 => cu!(cuDeviceGraphMemTrim(0)),
                _ => {
                    let mut keep = self.random.below(2) * 100 * MIB;
                    let which = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                    cu!(cuMemPoolSetAttribute(self.pool, which, (&raw mut keep).cast()));
                }
            },
            15 | 16 => self.foreign(),
            26 => self.code(),
            27 => self.passing_context(),
            14 => cu!(cuLaunchHostFunc(stream, Some(doze), null_mut())),
            _ => {
                let count = self.things.len() as u64;
                if count > 0 {
                    let at = self.random.below(count) as usize;
                    let thing = self.things.swap_remove(at);
                    self.free(thing, stream);
                }
            }
        }
    }

    /// Physical memory, and what refers to it: handles, mappings, imports of our own export, a descriptor.
    fn block(&mut self, bytes: u64) {
        let mut properties = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let mut handle = 0;
        let result = code!(cuMemCreate(
            &raw mut handle,
            bytes as usize,
            &raw const properties,
            0
        ));
        if result != CUDA_SUCCESS {
            return assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mut handles = vec![handle];
        let (mut descriptor, mut counted) = (None, bytes);
        if self.random.below(2) == 0 {
            let mut number = -1i32;
            let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            cu!(cuMemExportToShareableHandle(
                (&raw mut number).cast(),
                handle,
                kind,
                0
            ));
            // SAFETY: the driver has just made it, for us to close.
            let exported = unsafe { OwnedFd::from_raw_fd(number) };
            match self.random.below(3) {
                // For a moment there is only the descriptor: who comes first by it then pays.
                0 => {
                    counted = 0;
                    cu!(cuMemRelease(handle));
                    match import(&exported) {
                        Ok(again) => handles[0] = again,
                        Err(code) => return assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY),
                    }
                    handle = handles[0];
                }
                1 => handles.push(import(&exported).expect("we have it")),
                _ => {
                    let process = std::process::id();
                    self.post(&format!("descriptor {process} {number}"));
                    descriptor = Some(exported);
                }
            }
        }
        let mut mappings = Vec::new();
        for _ in 0..self.random.below(3) {
            let part = match self.random.below(2) {
                0 => bytes as usize,
                _ => PAGE as usize,
            };
            let address: CUdeviceptr = get!(cuMemAddressReserve(part, 0, 0, 0));
            cu!(cuMemMap(address, part, 0, handle, 0));
            mappings.push((address, part));
        }
        if let Some((address, _)) = mappings.first()
            && self.random.below(2) == 0
        {
            handles.push(get!(cuMemRetainAllocationHandle(*address as *mut c_void)));
        }
        self.got(CUDA_SUCCESS, counted, || {
            Thing::Block(handles, mappings, descriptor, counted)
        });
    }

    /// Tells everybody of something that may be opened, until the next takes its place.
    fn post(&mut self, what: &str) {
        let name = format!("post-{}", self.random.below(4));
        let draft = mail(&format!(
            "{name}-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&draft, what).expect("the folder is there");
        std::fs::rename(&draft, mail(&name)).expect("the folder is there");
    }

    fn post_pointer(&mut self, pointer: CUdeviceptr) {
        let handle: CUipcMemHandle = get!(cuIpcGetMemHandle(pointer));
        let bytes = handle.reserved.map(|byte| byte as u8);
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.post(&format!("pointer {digits}"));
    }

    fn post_pooled(&mut self, pointer: CUdeviceptr) {
        let data: CUmemPoolPtrExportData = get!(cuMemPoolExportPointer(pointer));
        let digits: String = data.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
        let (process, number) = (std::process::id(), self.name.as_raw_fd());
        self.post(&format!("pooled {process} {number} {digits}"));
    }

    /// Imports a pointer of a pool that anybody has posted, this process included.
    fn open_pooled(&mut self, process: &str, number: &str, digits: &str) {
        let Some(name) = memory_file(process, number) else {
            return;
        };
        let (shared, kind) = (
            name.into_raw_fd() as isize as *mut c_void,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        );
        let mut pool = null_mut();
        if code!(cuMemPoolImportFromShareableHandle(&raw mut pool, shared, kind, 0)) != CUDA_SUCCESS {
            return;
        }
        let mut data = CUmemPoolPtrExportData {
            reserved: std::array::from_fn(|at| digit(digits, at)),
        };
        let mut pointer = 0;
        if code!(cuMemPoolImportPointer(&raw mut pointer, pool, &raw mut data)) == CUDA_SUCCESS {
            self.things.push(Thing::Joined(pointer));
            OPENED_POOLED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens a pointer that a process has posted, if it is another one, and still has it.
    fn open(&mut self, digits: &str) {
        let handle = CUipcMemHandle {
            reserved: std::array::from_fn(|at| digit(digits, at) as std::ffi::c_char),
        };
        let mut pointer = 0;
        let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        if code!(cuIpcOpenMemHandle_v2(&raw mut pointer, handle, flags)) == CUDA_SUCCESS {
            self.things.push(Thing::Opened(pointer));
            OPENED_POINTERS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Code with a variable of some pages, as a module or as a library.
    fn code(&mut self) {
        let bytes = (1 + self.random.below(16)) * PAGE;
        let text = format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 big[{bytes}];\n"
        );
        let image = std::ffi::CString::new(text).expect("no NUL");
        if self.random.below(2) == 0 {
            let mut module = null_mut();
            let result = code!(cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
            return self.got(result, bytes, || Thing::Module(module, bytes));
        }
        let mut library = null_mut();
        let result = code!(cuLibraryLoadData(
            &raw mut library,
            image.as_ptr().cast(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        self.got(result, bytes, || Thing::Library(library, bytes));
        if result == CUDA_SUCCESS {
            // It comes to a device when it is first asked for there; charged it is from the load on.
            let (mut address, mut there) = (0, 0);
            cu!(cuLibraryGetGlobal(
                &raw mut address,
                &raw mut there,
                library,
                c"big".as_ptr()
            ));
            assert_eq!(there as u64, bytes);
        }
    }

    /// A context beside the one of this process, which takes with it what was made in it.
    fn passing_context(&mut self) {
        let passing: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let mut live = 0;
        for _ in 0..self.random.below(4) {
            let bytes = self.random.bytes();
            let mut pointer = 0;
            if code!(cuMemAlloc_v2(&raw mut pointer, bytes as usize)) == CUDA_SUCCESS {
                live += bytes;
                LIVE.fetch_add(bytes, Ordering::Relaxed);
                if self.random.below(2) == 0 {
                    self.post_pointer(pointer);
                }
            }
        }
        if self.random.below(2) == 0 {
            let stream: CUstream = get!(cuStreamCreate(0));
            cu!(cuLaunchHostFunc(stream, Some(doze), null_mut()));
        }
        // What is opened in it goes with it.
        let before = self.things.len();
        self.foreign();
        let own = ledger().0;
        assert!(own >= LIVE.load(Ordering::Relaxed).min(live), "{own} charged");
        if self.things.len() > before && matches!(self.things[before], Thing::Opened(_) | Thing::External(..))
        {
            self.things.truncate(before);
        }
        LIVE.fetch_sub(live, Ordering::Relaxed);
        cu!(cuCtxDestroy_v2(passing));
    }

    /// Opens what somebody has posted, if it is still there and there is room.
    fn foreign(&mut self) {
        let name = format!("post-{}", self.random.below(4));
        let posted = std::fs::read_to_string(mail(&name)).unwrap_or_default();
        let words: Vec<&str> = posted.split(' ').collect();
        if let ["pointer", digits] = words[..] {
            return self.open(digits);
        }
        if let ["pooled", process, number, digits] = words[..] {
            return self.open_pooled(process, number, digits);
        }
        let ["descriptor", process, number] = words[..] else {
            return;
        };
        let Some(file) = memory_file(process, number) else {
            return;
        };
        if self.random.below(3) == 0 {
            return self.external(file);
        }
        if let Ok(handle) = import(&file.into()) {
            let mapped = (self.random.below(2) == 0).then(|| {
                let address: CUdeviceptr = get!(cuMemAddressReserve(PAGE as usize, 0, 0, 0));
                cu!(cuMemMap(address, PAGE as usize, 0, handle, 0));
                address
            });
            self.things.push(Thing::Foreign(handle, mapped));
            OPENED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens a posted descriptor as external memory, which takes it over.
    fn external(&mut self, file: std::fs::File) {
        let bytes = file.metadata().expect("it is open").len();
        let number = file.into_raw_fd();
        let described = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1_handle { fd: number },
            size: PAGE.min(bytes),
            ..Default::default()
        };
        let mut memory = null_mut();
        if code!(cuImportExternalMemory(&raw mut memory, &raw const described)) != CUDA_SUCCESS {
            // SAFETY: refused, it is still ours.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            return;
        }
        let buffer = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
            size: 4096,
            ..Default::default()
        };
        let mapped: Vec<CUdeviceptr> = (0..self.random.below(3))
            .map(|_| get!(cuExternalMemoryGetMappedBuffer(memory, &raw const buffer)))
            .collect();
        let kept = mapped.is_empty() || self.random.below(2) == 0;
        if !kept {
            cu!(cuDestroyExternalMemory(memory));
        }
        self.things.push(Thing::External(mapped, kept.then_some(memory)));
        OPENED_EXTERNAL.fetch_add(1, Ordering::Relaxed);
    }

    fn array(&mut self) {
        let described = CUDA_ARRAY3D_DESCRIPTOR {
            Width: 1 + self.random.below(2000) as usize,
            Height: 1 + self.random.below(2000) as usize,
            Depth: 0,
            Format: CU_AD_FORMAT_FLOAT,
            NumChannels: 2,
            Flags: 0,
        };
        let bytes = (described.Width * described.Height * 8) as u64;
        if self.random.below(2) == 0 {
            let mut array = null_mut();
            let result = code!(cuArray3DCreate_v2(&raw mut array, &raw const described));
            self.got(result, bytes, || Thing::Array(array, bytes));
        } else {
            let mut mipmap = null_mut();
            let result = code!(cuMipmappedArrayCreate(&raw mut mipmap, &raw const described, 4));
            self.got(result, bytes, || Thing::Mipmap(mipmap, bytes));
        }
    }

    fn graph(&mut self, stream: CUstream) {
        let graph: CUgraph = get!(cuGraphCreate(0));
        let mut wanted = CUDA_MEM_ALLOC_NODE_PARAMS::default();
        wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.poolProps.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.bytesize = self.random.bytes() as usize;
        let node: CUgraphNode = get!(cuGraphAddMemAllocNode(
            graph,
            std::ptr::null(),
            0,
            &raw mut wanted
        ));
        let _free: CUgraphNode = get!(cuGraphAddMemFreeNode(graph, &raw const node, 1, wanted.dptr));
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        for _ in 0..2 {
            let result = code!(cuGraphLaunch(exec, stream));
            assert!(
                result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY,
                "{result:?}"
            );
        }
        cu!(cuStreamSynchronize(stream));
        cu!(cuGraphExecDestroy(exec));
        cu!(cuGraphDestroy(graph));
    }

    /// Captured, an allocation takes nothing, however large.
    fn capture(&mut self) {
        let stream: CUstream = get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0));
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        let pointer: CUdeviceptr = get!(cuMemAllocAsync(2 << 30, stream));
        cu!(cuMemFreeAsync(pointer, stream));
        let mut graph = null_mut();
        cu!(cuStreamEndCapture(stream, &raw mut graph));
        cu!(cuGraphDestroy(graph));
        cu!(cuStreamDestroy_v2(stream));
    }

    /// What no driver grants, and what it never handed out.
    fn nonsense(&mut self) {
        let mut pointer = 0;
        for bytes in [u64::MAX, u64::MAX - 511, 1 << 62, LIMIT + 1] {
            assert_eq!(
                code!(cuMemAlloc_v2(&raw mut pointer, bytes as usize)),
                CUDA_ERROR_OUT_OF_MEMORY
            );
            let result = code!(cuMemAllocAsync(&raw mut pointer, bytes as usize, null_mut()));
            assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY);
        }
        assert_eq!(
            code!(cuMemAlloc_v2(&raw mut pointer, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuMemAllocAsync(&raw mut pointer, 0, null_mut())),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(pointer, 0);
        for bogus in [0x1234, 0xdead_beef_0000, u64::MAX] {
            assert_ne!(code!(cuMemFree_v2(bogus)), CUDA_SUCCESS);
            assert_ne!(code!(cuMemFreeAsync(bogus, null_mut())), CUDA_SUCCESS);
            assert_ne!(code!(cuMemRelease(bogus)), CUDA_SUCCESS);
            assert_ne!(code!(cuMemUnmap(bogus & !0x1f_ffff, PAGE as usize)), CUDA_SUCCESS);
            assert_ne!(code!(cuArrayDestroy(bogus as CUarray)), CUDA_SUCCESS);
            assert_ne!(code!(cuIpcCloseMemHandle(bogus)), CUDA_SUCCESS);
        }
        if let Some(Thing::Pointer(pointer, _)) = self.things.first() {
            assert_ne!(
                code!(cuMemFree_v2(pointer + 256)),
                CUDA_SUCCESS,
                "not its beginning"
            );
        }
    }

    fn free(&mut self, thing: Thing, stream: CUstream) {
        if let Thing::Pointer(_, bytes)
        | Thing::Managed(_, bytes)
        | Thing::Block(_, _, _, bytes)
        | Thing::Module(_, bytes)
        | Thing::Library(_, bytes)
        | Thing::Array(_, bytes)
        | Thing::Mipmap(_, bytes) = thing
        {
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
        }
        match thing {
            Thing::Pointer(pointer, _) => match self.random.below(3) {
                0 => cu!(cuMemFree_v2(pointer)),
                1 => cu!(cuMemFreeAsync_ptsz(pointer, stream)),
                _ => cu!(cuMemFreeAsync(pointer, stream)),
            },
            Thing::Managed(pointer, bytes) => {
                cu!(cuMemFree_v2(pointer));
                MANAGED.fetch_sub(paged(bytes), Ordering::Relaxed);
            }
            Thing::Foreign(handle, mapped) => {
                cu!(cuMemRelease(handle));
                if let Some(address) = mapped {
                    cu!(cuMemUnmap(address, PAGE as usize));
                    cu!(cuMemAddressFree(address, PAGE as usize));
                }
            }
            Thing::Block(handles, mappings, _descriptor, _) => {
                let released = self.random.below(2) == 0;
                if released {
                    handles.iter().for_each(|handle| cu!(cuMemRelease(*handle)));
                }
                for (address, part) in mappings {
                    cu!(cuMemUnmap(address, part));
                    cu!(cuMemAddressFree(address, part));
                }
                if !released {
                    handles.iter().for_each(|handle| cu!(cuMemRelease(*handle)));
                }
            }
            Thing::Opened(pointer) => cu!(cuIpcCloseMemHandle(pointer)),
            Thing::Joined(pointer) => match self.random.below(2) {
                0 => cu!(cuMemFree_v2(pointer)),
                _ => cu!(cuMemFreeAsync(pointer, stream)),
            },
            Thing::External(mapped, memory) => {
                mapped.iter().for_each(|pointer| cu!(cuMemFree_v2(*pointer)));
                memory
                    .iter()
                    .for_each(|memory| cu!(cuDestroyExternalMemory(*memory)));
            }
            Thing::Module(module, _) => cu!(cuModuleUnload(module)),
            Thing::Library(library, _) => cu!(cuLibraryUnload(library)),
            Thing::Array(array, _) => cu!(cuArrayDestroy(array)),
            Thing::Mipmap(mipmap, _) => cu!(cuMipmappedArrayDestroy(mipmap)),
        }
    }

    /// Everybody has stopped: brings the device to what is really in use. Arrays go: which of them share pages, no call
    /// tells.
    fn settle(&mut self, all: bool) {
        let things = std::mem::take(&mut self.things);
        for thing in things {
            match thing {
                Thing::Array(..) | Thing::Mipmap(..) => self.free(thing, null_mut()),
                _ if !all => self.things.push(thing),
                other => self.free(other, null_mut()),
            }
        }
        cu!(cuCtxSynchronize());
        for stream in &self.streams {
            cu!(cuStreamSynchronize_ptsz(*stream));
        }
        // And what others give back later, it does not keep.
        let (mut keep, which) = (0_u64, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
        cu!(cuMemPoolSetAttribute(self.pool, which, (&raw mut keep).cast()));
        cu!(cuMemPoolTrimTo(self.pool, 0));
    }
}

/// What a process has posted a descriptor of, if that still is a memory file.
fn memory_file(process: &str, number: &str) -> Option<std::fs::File> {
    let path = format!("/proc/{process}/fd/{number}");
    let is_memory = std::fs::read_link(&path).is_ok_and(|file| file.to_string_lossy().contains("memfd"));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    file.ok().filter(|_| is_memory)
}

fn digit(digits: &str, at: usize) -> u8 {
    u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits")
}

/// Imports a descriptor, which stays ours.
fn import(descriptor: &OwnedFd) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handle = 0;
    let number = descriptor.as_raw_fd() as isize as *mut c_void;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    code!(cuMemImportFromShareableHandle(&raw mut handle, number, kind)).ok()?;
    Ok(handle)
}

/// A file that all processes see.
fn mail(name: &str) -> std::path::PathBuf {
    let folder = std::env::var_os("DIVVY_RUN_DIR").expect("the run directory");
    std::path::Path::new(&folder).join(name)
}

/// Bytes in the ledger: this process's, and everybody's.
fn ledger() -> (u64, u64) {
    let Some(Tenant::Member(member)) = tenant::known() else {
        panic!("a member")
    };
    let slot = member.first().slot();
    (
        slot.used().expect("not a child"),
        slot.total_used().expect("not a child"),
    )
}

fn work(number: u64) {
    below::stand_on(&divvy_emulator::TABLE);
    let socket = std::env::var_os("SOCKET").expect("the slice's socket");
    tenant::enter(vec![connect(socket.as_ref(), 0).expect("the keeper answers")]);
    cu!(cuInit(0));
    let context = emulated::context() as usize;
    let barrier = Barrier::new(THREADS as usize);
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().expect("the parent lives").expect("text");
    std::thread::scope(|scope| {
        let (go, done) = (&barrier, &barrier);
        let (told, tell) = std::sync::mpsc::channel::<()>();
        for thread in 0..THREADS {
            let told = told.clone();
            scope.spawn(move || {
                cu!(cuCtxSetCurrent(context as CUcontext));
                let mut worker = Worker::new(seed() * 64 + 1 + number * THREADS + thread);
                for phase in 0..=PHASES {
                    for step in 0..STEPS {
                        if phase < PHASES {
                            let _stepping = STEP.read().expect("no panic");
                            worker.step();
                        }
                        if step % 8 == 0 {
                            let _stopped = STEP.write().expect("no panic");
                            let ((own, total), live) = (ledger(), LIVE.load(Ordering::Relaxed));
                            assert!(own >= live, "{own} charged, {live} live");
                            assert!(total <= LIMIT, "{total} charged to the slice");
                        }
                    }
                    go.wait();
                    worker.settle(phase == PHASES);
                    done.wait();
                    told.send(()).expect("the main thread lives");
                    PHASE.wait_for(phase + 1);
                }
            });
        }
        for phase in 0..=PHASES {
            for _ in 0..THREADS {
                tell.recv().expect("no worker has panicked");
            }
            cu!(cuDeviceGraphMemTrim(0));
            let pool: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
            cu!(cuMemPoolTrimTo(pool, 0));
            cu!(cuCtxSynchronize());
            say(&format!("settled {}", MANAGED.load(Ordering::Relaxed)));
            while next() == "measure" {
                let (mut free, mut total) = (0, 0);
                cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
                say(&format!("{} {free} {total}", held()));
            }
            PHASE.set(phase + 1);
        }
    });
    cu!(cuCtxDestroy_v2(context as CUcontext));
    assert_eq!(ledger().0, 0);
    let opened = [&OPENED, &OPENED_POINTERS, &OPENED_POOLED, &OPENED_EXTERNAL];
    let counts = opened.map(|count| count.load(Ordering::Relaxed).to_string());
    say(&format!("end {}", counts.join(" ")));
}

/// What the ledger and the device say of each process, in bytes.
fn by_process(slice: &Slice, folder: &std::path::Path) -> String {
    let uuid = divvy_emulator::Uuid(emulated::uuid_in(folder)).to_string();
    let device = divvy_emulator::usage_in(folder, &uuid).expect("a device page");
    let charged: Vec<_> = slice.pages.ledger.processes().collect();
    let lines = device.processes.iter().map(|held| {
        let of = charged.iter().find(|process| process.pid == held.pid);
        let used = of.map_or(0, |process| process.used_bytes);
        format!("process {}: charged {used}, holds {}", held.pid, held.used_bytes)
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// Which phase the threads may begin.
struct Phase(AtomicU64);
static PHASE: Phase = Phase(AtomicU64::new(0));

impl Phase {
    fn set(&self, phase: u64) {
        self.0.store(phase, Ordering::Release);
    }

    fn wait_for(&self, phase: u64) {
        while self.0.load(Ordering::Acquire) < phase {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn say(line: &str) {
    println!("\n@{line}");
    std::io::stdout().flush().expect("the parent lives");
}

#[test]
fn the_ledger_is_what_the_device_holds() {
    if let Ok(number) = std::env::var("WORKER") {
        return work(number.parse().expect("a number"));
    }
    println!("DIVVY_PROPERTY_SEED={}", seed());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let slice = Slice::with(&[(LIMIT, emulated::uuid_in(folder.path()))], Terms::default());
    let mut workers: Vec<_> = (0..PROCESSES)
        .map(|number| {
            Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "the_ledger_is_what_the_device_holds", "--nocapture"])
                .env("WORKER", number.to_string())
                .env("SOCKET", &slice.socket)
                .env("DIVVY_EMULATED", "h100")
                .env("DIVVY_RUN_DIR", folder.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program starts again")
        })
        .collect();
    let mut outputs: Vec<_> = workers
        .iter_mut()
        .map(|worker| BufReader::new(worker.stdout.take().expect("piped")).lines())
        .collect();
    let mut heard = |number: usize| loop {
        let line = outputs[number].next().expect("the worker lives").expect("text");
        if let Some(said) = line.strip_prefix('@') {
            return said.to_owned();
        }
    };
    let mut tell = |number: usize, line: &str| {
        let input = workers[number].stdin.as_mut().expect("piped");
        writeln!(input, "{line}").expect("the worker lives");
    };
    for phase in 0..=PHASES {
        let managed: u64 = (0..PROCESSES as usize)
            .map(|number| {
                let said = heard(number);
                let bytes = said.strip_prefix("settled ").expect("the protocol");
                bytes.parse::<u64>().expect("a number")
            })
            .sum();
        // Everybody looks twice: what was closed in stream order is found closed at the first look, and who pays for what
        // others had open learns of that at the second.
        let mut measured = String::new();
        for number in (0..PROCESSES as usize).rev().chain((0..PROCESSES as usize).rev()) {
            tell(number, "measure");
            measured = heard(number);
        }
        let figures: Vec<u64> = measured
            .split(' ')
            .map(|figure| figure.parse().expect("a number"))
            .collect();
        let used = slice.used();
        assert_eq!(
            used,
            figures[0] + managed,
            "phase {phase}: charged, and held with {managed} managed; {}",
            by_process(&slice, folder.path())
        );
        assert_eq!((figures[1], figures[2]), (LIMIT - used, LIMIT), "cuMemGetInfo");
        if phase == PHASES {
            assert_eq!(used, 0);
        }
        for number in 0..PROCESSES as usize {
            tell(number, "go");
        }
    }
    let mut opened = [0_u64; 4];
    for number in 0..PROCESSES as usize {
        let said = heard(number);
        let counts = said.strip_prefix("end ").expect("the protocol").split(' ');
        for (sum, count) in opened.iter_mut().zip(counts) {
            *sum += count.parse::<u64>().expect("a number");
        }
    }
    assert!(
        opened.iter().filter(|count| **count == 0).count() <= usize::from(!passes_pooled()),
        "nothing passed between processes: {opened:?}"
    );
    for mut worker in workers {
        assert!(worker.wait().expect("it ends").success());
    }
    assert_eq!(slice.used(), 0);
}
