//! Two threads of one program against each other: the driver below gets no name twice, and nothing that is gone.
//!
//! The messages are made by hand, as a client of a tenant's own making sends them.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_abi::*;
use divvy_remote::handle::{Id, Kind, Origin};
use divvy_remote::server::{Quota, Server, Session};
use divvy_remote::wire::{HEADER_BYTES, Header, Hello, Malformed, Sort, Writer, by_hand, shapes};

/// One thread of a program.
struct Thread {
    session: Session,
    sequence: u64,
}

fn id_of(name: &str) -> u32 {
    shapes()
        .iter()
        .find(|(symbol, ..)| symbol.name() == name)
        .expect("a call")
        .1
}

impl Thread {
    fn new(server: &Arc<Server>) -> Self {
        let mut session = server.session();
        session.receive(&Hello::ours(0, 4096).encode()).expect("a hello");
        Self { session, sequence: 0 }
    }

    /// Makes a call, and gives its code.
    fn call(&mut self, id: u32, parts: &[&[u8]]) -> Result<CUresult, Malformed> {
        self.sequence += 1;
        let body = parts.concat();
        let mut message = vec![0; HEADER_BYTES];
        let header = Header {
            length: (HEADER_BYTES + body.len()) as u32,
            id,
            sequence: self.sequence,
            order: 0,
            sort: Sort::Call,
        };
        header.write(&mut Writer::new(&mut message));
        message.extend(body);
        let answer = self.session.receive(&message)?.expect("an answer").to_vec();
        let (_, mut body) = Header::read(&answer)?;
        body.plain()
    }
}

fn name(kind: Kind, number: u64) -> [u8; 8] {
    Id::new(kind, Origin::Client, number).bits().to_le_bytes()
}

/// Counts calls of a driver that are in progress, or waits for what a test says.
fn until(what: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !what() {
        if began.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// The driver's state is one: so tests that use it come one after the other.
static TURN: Mutex<()> = Mutex::new(());
/// A call is in the driver, and goes on when it is let go on.
static INSIDE: AtomicU32 = AtomicU32::new(0);
static GO_ON: AtomicBool = AtomicBool::new(false);
/// What was made, and what was destroyed.
static MADE: AtomicU64 = AtomicU64::new(0);
static GONE: AtomicU64 = AtomicU64::new(0);
/// Something was used after it was gone.
static STRANGE: AtomicU32 = AtomicU32::new(0);
const CONTEXT: usize = 0x4000;
const MEMORY: u64 = 0x7000_0000_0000;

/// Waits in the driver until the test lets it go on, and notes whether something was destroyed meanwhile.
fn uses() -> CUresult {
    let gone = GONE.load(Ordering::SeqCst);
    INSIDE.fetch_add(1, Ordering::SeqCst);
    until(|| GO_ON.load(Ordering::SeqCst));
    if GONE.load(Ordering::SeqCst) != gone {
        STRANGE.fetch_add(1, Ordering::SeqCst);
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn make_stream(stream: *mut CUstream, _: u32) -> CUresult {
    let number = MADE.fetch_add(1, Ordering::SeqCst) + 1;
    // The second is made at once: if the first waits for it, the name was given twice.
    if number == 1 {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        until(|| GO_ON.load(Ordering::SeqCst));
    }
    // SAFETY: the server vouches for the place.
    unsafe { stream.write(std::ptr::without_provenance_mut(16 * number as usize)) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn current(context: *mut CUcontext) -> CUresult {
    // SAFETY: as above.
    unsafe { context.write(std::ptr::without_provenance_mut(CONTEXT)) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn make_context(context: *mut CUcontext, _: u32, _: CUdevice) -> CUresult {
    // SAFETY: as above.
    unsafe { context.write(std::ptr::without_provenance_mut(CONTEXT)) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn end_context(_: CUcontext) -> CUresult {
    GONE.fetch_add(1, Ordering::SeqCst);
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn synchronize() -> CUresult {
    uses()
}

unsafe extern "C-unwind" fn allocate(address: *mut CUdeviceptr, _: usize) -> CUresult {
    // SAFETY: as above.
    unsafe { address.write(MEMORY) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn free(_: CUdeviceptr) -> CUresult {
    GONE.fetch_add(1, Ordering::SeqCst);
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn copy(_: CUdeviceptr, _: *const c_void, _: usize) -> CUresult {
    uses()
}

unsafe extern "C-unwind" fn retain(context: *mut CUcontext, _: CUdevice) -> CUresult {
    // SAFETY: as above.
    unsafe { context.write(std::ptr::without_provenance_mut(CONTEXT)) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn release(_: CUdevice) -> CUresult {
    if INSIDE.fetch_add(1, Ordering::SeqCst) != 0 {
        STRANGE.fetch_add(1, Ordering::SeqCst);
    }
    std::thread::sleep(Duration::from_millis(20));
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    CUDA_SUCCESS
}

static DRIVER: Table = Table {
    cuStreamCreate: make_stream,
    cuCtxGetCurrent: current,
    cuCtxCreate_v2: make_context,
    cuCtxDestroy_v2: end_context,
    cuCtxSynchronize: synchronize,
    cuMemAlloc_v2: allocate,
    cuMemFree_v2: free,
    cuMemcpyHtoD_v2: copy,
    cuDevicePrimaryCtxRetain: retain,
    cuDevicePrimaryCtxRelease_v2: release,
    ..Table::UNSUPPORTED
};

fn with_server(body: impl FnOnce(&Arc<Server>)) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for counter in [&INSIDE, &STRANGE] {
        counter.store(0, Ordering::SeqCst);
    }
    MADE.store(0, Ordering::SeqCst);
    GONE.store(0, Ordering::SeqCst);
    GO_ON.store(false, Ordering::SeqCst);
    body(&Server::new(&DRIVER, Quota::default()));
}

/// Has one thread in the driver, then lets another one begin `ends`, and gives the code of that.
fn one_in_the_driver(
    server: &Arc<Server>,
    uses: impl FnOnce(&mut Thread) -> Result<CUresult, Malformed> + Send,
    ends: impl FnOnce(&mut Thread) -> Result<CUresult, Malformed> + Send,
) -> Result<CUresult, Malformed> {
    let (mut first, mut second) = (Thread::new(server), Thread::new(server));
    std::thread::scope(|scope| {
        let first = scope.spawn(move || uses(&mut first));
        assert!(
            until(|| INSIDE.load(Ordering::SeqCst) == 1),
            "it is in the driver"
        );
        let ended = scope.spawn(move || ends(&mut second));
        // Time for the wrong thing to happen. The right one needs none.
        std::thread::sleep(Duration::from_millis(60));
        GO_ON.store(true, Ordering::SeqCst);
        assert_eq!(first.join().expect("no panic"), Ok(CUDA_SUCCESS));
        ended.join().expect("no panic")
    })
}

#[test]
fn a_name_that_two_threads_give_at_once_is_given_once() {
    with_server(|server| {
        let create = id_of("cuStreamCreate");
        let stream = name(Kind::Stream, 1);
        let make = |thread: &mut Thread| thread.call(create, &[&stream, &[0; 4]]);
        assert_eq!(one_in_the_driver(server, make, make), Err(Malformed));
        assert_eq!(
            MADE.load(Ordering::SeqCst),
            1,
            "the loser's object would stay for ever"
        );
        assert_eq!(server.held().0, 1);
    });
}

#[test]
fn a_name_is_free_again_where_its_call_failed() {
    with_server(|server| {
        let mut thread = Thread::new(server);
        let event = name(Kind::Event, 1);
        for _ in 0..2 {
            let code = thread.call(id_of("cuEventCreate"), &[&event, &[0; 4]]);
            assert_eq!(code, Ok(CUDA_ERROR_NOT_SUPPORTED), "as the driver below says");
        }
        assert_eq!(server.held().0, 0);
    });
}

#[test]
fn memory_that_another_thread_copies_to_is_freed_after_the_copy() {
    with_server(|server| {
        let bytes = 64_u64.to_le_bytes();
        let code = Thread::new(server).call(id_of("cuMemAlloc_v2"), &[&[1], &bytes]);
        assert_eq!(code, Ok(CUDA_SUCCESS));
        let address = MEMORY.to_le_bytes();
        let code = one_in_the_driver(
            server,
            |thread| thread.call(by_hand::TO_DEVICE, &[&[0], &[0; 8], &address, &[7; 16]]),
            |thread| thread.call(by_hand::FREE, &[&address]),
        );
        assert_eq!(code, Ok(CUDA_SUCCESS));
        assert_eq!(STRANGE.load(Ordering::SeqCst), 0, "it was freed under the copy");
        assert_eq!((server.held().1, GONE.load(Ordering::SeqCst)), (0, 1));
    });
}

#[test]
fn a_context_that_is_current_in_another_threads_call_is_destroyed_after_it() {
    with_server(|server| {
        let context = name(Kind::Context, 1);
        let code = Thread::new(server).call(id_of("cuCtxCreate_v2"), &[&context, &[0; 8]]);
        assert_eq!(code, Ok(CUDA_SUCCESS));
        let code = one_in_the_driver(
            server,
            // It names no object.
            |thread| thread.call(id_of("cuCtxSynchronize"), &[]),
            |thread| thread.call(id_of("cuCtxDestroy_v2"), &[&context]),
        );
        assert_eq!(code, Ok(CUDA_SUCCESS));
        assert_eq!(
            STRANGE.load(Ordering::SeqCst),
            0,
            "it was destroyed under the call"
        );
        assert_eq!((server.held().0, GONE.load(Ordering::SeqCst)), (0, 1));
    });
}

#[test]
fn two_threads_destroy_each_others_current_context() {
    with_server(|server| {
        // The driver says that the first is current in both. Each destroys, and neither waits for the other for ever.
        let context = name(Kind::Context, 1);
        let code = Thread::new(server).call(id_of("cuCtxCreate_v2"), &[&context, &[0; 8]]);
        assert_eq!(code, Ok(CUDA_SUCCESS));
        let codes = std::thread::scope(|scope| {
            let destroys = || Thread::new(server).call(id_of("cuCtxDestroy_v2"), &[&context]);
            let both = [scope.spawn(destroys), scope.spawn(destroys)];
            both.map(|one| one.join().expect("no panic"))
        });
        let ended = codes.iter().filter(|code| **code == Ok(CUDA_SUCCESS)).count();
        assert_eq!((ended, GONE.load(Ordering::SeqCst)), (1, 1), "{codes:?}");
    });
}

#[test]
fn references_to_a_primary_context_are_given_back_one_at_a_time() {
    with_server(|server| {
        let device = [0; 4];
        for _ in 0..3 {
            let code = Thread::new(server).call(by_hand::PRIMARY_RETAIN, &[&device]);
            assert_eq!(code, Ok(CUDA_SUCCESS));
        }
        let codes = std::thread::scope(|scope| {
            let releases = || Thread::new(server).call(by_hand::PRIMARY_RELEASE, &[&device]);
            let all = [(); 4].map(|()| scope.spawn(releases));
            all.map(|one| one.join().expect("no panic"))
        });
        let released = codes.iter().filter(|code| **code == Ok(CUDA_SUCCESS)).count();
        assert_eq!(released, 3, "{codes:?}: as many as were taken");
        assert_eq!(
            STRANGE.load(Ordering::SeqCst),
            0,
            "two calls counted references at once"
        );
    });
}
