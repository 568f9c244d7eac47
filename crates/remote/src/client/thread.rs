//! A thread's way to the server: its transport, its messages' memory, and the order of its messages.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use divvy_abi::*;

use super::{Told, callback, client, start};
use crate::wire::by_hand::{CALLBACK_WAIT, START};
use crate::wire::{HEADER_BYTES, HELLO_BYTES, Header, Hello, Malformed, Reader, Sort, VERSION, Writer};
use crate::{Lost, NotOpened, Transport, fork};

struct Thread {
    transport: Box<dyn Transport>,
    /// The number of the next message.
    next: u64,
    message: Vec<u8>,
    answer: Vec<u8>,
    /// The server is gone, or did not keep to the protocol.
    lost: bool,
}

thread_local! {
    static THREAD: Own = const { Own(RefCell::new(None)) };
}

/// A thread's own transport. It is closed when the thread ends, but for the first thread: the program's functions at exit
/// run there, after this is gone.
struct Own(RefCell<Option<Thread>>);

impl Drop for Own {
    fn drop(&mut self) {
        if is_first() {
            LAST.0.replace(self.0.take());
        }
    }
}

/// The first thread's transport, once the thread's own memory is gone.
struct Last(RefCell<Option<Thread>>);

// SAFETY: the first thread alone looks at it.
unsafe impl Sync for Last {}

static LAST: Last = Last(RefCell::new(None));

fn is_first() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// What a call answers once there is no server.
const GONE: CUresult = CUDA_ERROR_DEVICE_UNAVAILABLE;

/// The process that connected, by its number among its forebears; 0 before one has.
static CONNECTED: AtomicU64 = AtomicU64::new(0);

/// Whether this process is the child of the one that connected.
pub fn is_forked() -> bool {
    let connected = CONNECTED.load(Ordering::Relaxed);
    connected != 0 && connected != fork::generation()
}

/// In a forked child, forgets the parent's connection, so that this process may have one of its own. The thread that
/// forked is the only one of the child.
pub fn forget_parents() {
    if !is_forked() {
        return;
    }
    let own = THREAD.try_with(|thread| {
        thread
            .0
            .try_borrow_mut()
            .ok()
            .and_then(|mut thread| thread.take())
    });
    // Its memory is the parent's to give back.
    std::mem::forget(own);
    CONNECTED.store(0, Ordering::Relaxed);
}

/// The same in this process: a forked child of the one that connected has no device, as on a device of its own.
fn gone() -> CUresult {
    match is_forked() {
        true => CUDA_ERROR_NOT_INITIALIZED,
        false => GONE,
    }
}

/// Runs `body` with this thread's transport, which is opened where there is none. Before cuInit CUDA has no calls.
fn with<R>(body: impl FnOnce(&mut Thread) -> Result<R, CUresult>) -> Result<R, CUresult> {
    start::require()?;
    with_at_any_time(body)
}

/// The same, also before cuInit.
fn with_at_any_time<R>(body: impl FnOnce(&mut Thread) -> Result<R, CUresult>) -> Result<R, CUresult> {
    if callback::runs() {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    if is_forked() {
        // What lies in this thread's memory is the parent's.
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    let mut body = Some(body);
    let mut on = |thread: &RefCell<Option<Thread>>| {
        // A call within a call: from a transport, which is no way to go on.
        let mut thread = thread.try_borrow_mut().map_err(|_| CUDA_ERROR_NOT_PERMITTED)?;
        if thread.is_none() {
            *thread = Some(open().map_err(|refused| match refused {
                NotOpened::Lost => gone(),
                NotOpened::Full => {
                    tell(Told::Full);
                    CUDA_ERROR_OUT_OF_MEMORY
                }
                NotOpened::Busy => {
                    tell(Told::Busy);
                    gone()
                }
            })?);
        }
        let open = thread.as_mut().filter(|thread| !thread.lost);
        let body = body.take().filter(|_| open.is_some());
        let outcome = open.zip(body).map_or(Err(GONE), |(thread, body)| body(thread));
        outcome.map_err(|code| if code == GONE { gone() } else { code })
    };
    match THREAD.try_with(|thread| on(&thread.0)) {
        Ok(outcome) => outcome,
        Err(_) if is_first() => on(&LAST.0),
        // The thread is ending.
        Err(_) => Err(CUDA_ERROR_DEINITIALIZED),
    }
}

/// Tells once that no more is served. What is served goes on, and so does the program.
#[cold]
fn tell(what: Told) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let Some(client) = client()
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        (client.told)(what);
    }
}

fn open() -> Result<Thread, NotOpened> {
    let client = client().ok_or(Lost)?;
    if is_forked() {
        return Err(NotOpened::Lost);
    }
    let own = fork::generation();
    let number = client.threads.fetch_add(1, Ordering::Relaxed);
    let mut transport = client.connector.open(number)?;
    let capacity = transport.capacity();
    let mut answer = Vec::with_capacity(HELLO_BYTES);
    let ours = Hello::ours(number, u32::try_from(capacity).unwrap_or(u32::MAX));
    transport.post(&ours.encode())?;
    // In the same round trip as the greeting.
    let asks = !start::is_told();
    if asks {
        let mut message = [0; HEADER_BYTES];
        let header = Header {
            length: HEADER_BYTES as u32,
            id: START,
            sequence: 1,
            order: 0,
            sort: Sort::Call,
        };
        header.write(&mut Writer::new(&mut message));
        transport.post(&message)?;
    }
    transport.take(&mut answer)?;
    let theirs = Hello::decode(&answer).map_err(|_| Lost)?;
    if theirs.version != VERSION || theirs.thread != number {
        return Err(NotOpened::Lost);
    }
    CONNECTED.store(own, Ordering::Relaxed);
    let capacity = capacity.min(theirs.capacity as usize);
    let mut thread = Thread {
        transport,
        next: 1,
        message: vec![0; capacity],
        answer,
        lost: false,
    };
    if asks {
        thread.next += 1;
        let (code, _late, mut body) = thread.take(START, 1).map_err(|_| Lost)?;
        start::take(&mut body, code).map_err(|_| Lost)?;
    }
    Ok(thread)
}

/// Opens this thread's transport, also before cuInit.
pub fn open_at_any_time() -> Result<(), CUresult> {
    with_at_any_time(|_| Ok(()))
}

/// A call, also before cuInit: `take` reads the answer, told its code.
pub fn call_at_any_time(
    id: u32,
    put: impl FnOnce(&mut Writer<'_>),
    take: impl FnOnce(&mut Reader<'_>, CUresult) -> Result<(), Malformed>,
) -> CUresult {
    let outcome = with_at_any_time(|thread| {
        let (code, late, mut body) = thread.call(id, put)?;
        if take(&mut body, code).is_err() {
            thread.lost = true;
            return Err(GONE);
        }
        Ok(if code == CUDA_SUCCESS { late } else { code })
    });
    outcome.unwrap_or_else(|code| code)
}

/// Bytes that a message may have, its header included.
pub fn capacity() -> Result<usize, CUresult> {
    with(|thread| Ok(thread.message.len()))
}

/// A message's place among the submitted calls of all threads. What this thread learned of another one, that one had done
/// before, so a call counts all that it may rely on.
fn order(id: u32, sort: Sort) -> u32 {
    let Some(client) = client() else {
        return 0;
    };
    match sort {
        Sort::Submit => match client.submitted.fetch_add(1, Ordering::AcqRel).wrapping_add(1) {
            // None is the zeroth: 0 is no place.
            0 => client.submitted.fetch_add(1, Ordering::AcqRel).wrapping_add(1),
            place => place,
        },
        // A submitted call may wait for the function that this call tells the end of.
        _ if id == CALLBACK_WAIT => 0,
        _ => client.submitted.load(Ordering::Acquire),
    }
}

impl Thread {
    fn write(&mut self, id: u32, sort: Sort, put: impl FnOnce(&mut Writer<'_>)) -> Result<usize, CUresult> {
        let mut to = Writer::new(&mut self.message);
        // What it says is known at the end.
        to.room(HEADER_BYTES);
        put(&mut to);
        // Nothing was sent, so the number is free again.
        let length = to.finish().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let header = Header {
            length: length as u32,
            id,
            sequence: self.next,
            order: order(id, sort),
            sort,
        };
        header.write(&mut Writer::new(&mut self.message));
        self.next += 1;
        Ok(length)
    }

    /// Sends a call and waits for its code, and the code of a call that was submitted before it.
    fn call(
        &mut self,
        id: u32,
        put: impl FnOnce(&mut Writer<'_>),
    ) -> Result<(CUresult, CUresult, Reader<'_>), CUresult> {
        let sequence = self.post(id, put)?;
        self.take(id, sequence)
    }

    /// Sends a call, and gives its number.
    fn post(&mut self, id: u32, put: impl FnOnce(&mut Writer<'_>)) -> Result<u64, CUresult> {
        let length = self.write(id, Sort::Call, put)?;
        self.lost = self.transport.post(&self.message[..length]).is_err();
        if self.lost { Err(GONE) } else { Ok(self.next - 1) }
    }

    /// Waits for the answer to the first call that was sent and whose answer was not taken.
    fn take(&mut self, id: u32, expected: u64) -> Result<(CUresult, CUresult, Reader<'_>), CUresult> {
        let taken = self.transport.take(&mut self.answer);
        let read = taken.map_err(|Lost| Malformed).and_then(|()| {
            let (header, mut body) = Header::read(&self.answer)?;
            if header.sort != Sort::Answer || header.sequence != expected || header.id != id {
                return Err(Malformed);
            }
            Ok((body.plain()?, body.plain()?, body))
        });
        self.lost = read.is_err();
        read.map_err(|Malformed| GONE)
    }
}

/// Makes a call: `put` writes the arguments, and `take` reads the answer, told whether the call succeeded.
///
/// A failure of a submitted call is the result of the first call after it that waits.
pub fn call(
    id: u32,
    symbol: Symbol,
    put: impl FnOnce(&mut Writer<'_>),
    take: impl FnOnce(&mut Reader<'_>, bool) -> Result<(), Malformed>,
) -> CUresult {
    let outcome = with(|thread| {
        let (code, late, mut body) = thread.call(id, put)?;
        if take(&mut body, code == CUDA_SUCCESS).is_err() {
            thread.lost = true;
            return Err(GONE);
        }
        if code == CUDA_ERROR_NOT_SUPPORTED
            && let Some(client) = client()
        {
            (client.told)(Told::Unserved(symbol));
        }
        Ok(if code == CUDA_SUCCESS { late } else { code })
    });
    outcome.unwrap_or_else(|code| code)
}

/// Makes `count` calls of one kind, of which up to `depth` are under way at once: `put` writes the arguments of each, and
/// `take` reads the answer of each that succeeded. The result is the first failure; calls after it may be made or not.
pub fn pipelined(
    id: u32,
    count: usize,
    depth: usize,
    mut put: impl FnMut(usize, &mut Writer<'_>),
    mut take: impl FnMut(usize, &mut Reader<'_>) -> Result<(), Malformed>,
) -> CUresult {
    let outcome = with(|thread| {
        let first = thread.next;
        let (mut sent, mut taken) = (0, 0);
        let mut outcome = CUDA_SUCCESS;
        while taken < count {
            if sent < count && sent - taken < depth && outcome == CUDA_SUCCESS {
                thread.post(id, |m| put(sent, m))?;
                sent += 1;
                continue;
            }
            if taken == sent {
                break;
            }
            let (code, late, mut body) = thread.take(id, first + taken as u64)?;
            if code == CUDA_SUCCESS && take(taken, &mut body).is_err() {
                thread.lost = true;
                return Err(GONE);
            }
            let code = if code == CUDA_SUCCESS { late } else { code };
            if outcome == CUDA_SUCCESS {
                outcome = code;
            }
            taken += 1;
        }
        Ok(outcome)
    });
    outcome.unwrap_or_else(|code| code)
}

/// Makes a call that is not waited for. `take` does what follows on a success, with no answer to read.
pub fn submit(
    id: u32,
    _symbol: Symbol,
    put: impl FnOnce(&mut Writer<'_>),
    take: impl FnOnce(&mut Reader<'_>, bool) -> Result<(), Malformed>,
) -> CUresult {
    let outcome = with(|thread| {
        let length = thread.write(id, Sort::Submit, put)?;
        if thread.transport.submit(&thread.message[..length]).is_err() {
            thread.lost = true;
            return Err(GONE);
        }
        Ok(())
    });
    match outcome {
        Ok(()) => take(&mut Reader::new(&[]), true).map_or(CUDA_ERROR_UNKNOWN, |()| CUDA_SUCCESS),
        Err(code) => code,
    }
}
