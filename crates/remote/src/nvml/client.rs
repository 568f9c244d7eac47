//! The NVML that a program sees. Each query is one exchange with the process that answers for the slice.
//!
//! The connection is made by the first nvmlInit, and again by a forked child. Without one, and once that process is gone,
//! queries answer `NVML_ERROR_GPU_IS_LOST`, and nvmlInit `NVML_ERROR_DRIVER_NOT_LOADED`.

use core::sync::atomic::{AtomicU32, Ordering};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use divvy_abi::nvml::*;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::queries::{self, Query};
use super::wire::{self, MOST, MOST_LIST, MOST_STRING, has_results};
use crate::fork::OfProcess;
use crate::wire::{Malformed, Reader, Writer};

/// A process that does not answer within this time answers no more.
const LIMIT: Duration = Duration::from_secs(10);

/// Where the process listens.
static SOCKET: OnceLock<PathBuf> = OnceLock::new();
/// Calls of nvmlInit that no nvmlShutdown has ended.
static USERS: AtomicU32 = AtomicU32::new(0);
static CONNECTION: OfProcess<Mutex<Option<Connection>>> = OfProcess::new();

/// The process that answers listens at this socket. Only the first word counts. Nothing is connected yet.
pub fn connect_at(socket: PathBuf) {
    let _first = SOCKET.set(socket);
}

struct Connection {
    socket: OwnedFd,
    /// The program may close the descriptor; its number may then be another file's.
    identity: (u64, u64),
    serial: u64,
}

impl Connection {
    fn new() -> Result<Self, nvmlReturn_t> {
        let socket = Self::open().map_err(|_| NVML_ERROR_DRIVER_NOT_LOADED)?;
        let mut greeting = [0; 64];
        let length = receive(&socket, &mut greeting).map_err(|_| NVML_ERROR_DRIVER_NOT_LOADED)?;
        if crate::local::handshake::is_refusal(&greeting[..length]) {
            return Err(NVML_ERROR_DRIVER_NOT_LOADED);
        }
        let code = wire::greeted(&greeting[..length]).map_err(|_| NVML_ERROR_LIB_RM_VERSION_MISMATCH)?;
        if code != NVML_SUCCESS {
            return Err(code);
        }
        let identity = identity(&socket).ok_or(NVML_ERROR_DRIVER_NOT_LOADED)?;
        Ok(Self {
            socket,
            identity,
            serial: 0,
        })
    }

    fn open() -> Result<OwnedFd, Errno> {
        let path = SOCKET.get().ok_or(Errno::NOENT)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for timeout in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
            sockopt::set_socket_timeout(&socket, timeout, Some(LIMIT))?;
        }
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        crate::local::handshake::begin(socket.as_fd())?;
        Ok(socket)
    }

    /// Whether the descriptor is still the socket, and the other side is there.
    fn is_open(&self) -> bool {
        identity(&self.socket) == Some(self.identity) && crate::local::handshake::is_open(&self.socket)
    }

    /// Sends a message and takes its answer.
    fn exchange(&mut self, message: &mut [u8], answer: &mut [u8]) -> Result<usize, nvmlReturn_t> {
        self.serial += 1;
        let serial = self.serial.to_le_bytes();
        message[8..16].copy_from_slice(&serial);
        rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL).map_err(|_| NVML_ERROR_GPU_IS_LOST)?;
        let length = receive(&self.socket, answer).map_err(|error| match error {
            Errno::AGAIN => NVML_ERROR_TIMEOUT,
            _ => NVML_ERROR_GPU_IS_LOST,
        })?;
        match answer[..length].starts_with(&serial) {
            true => Ok(length),
            false => Err(NVML_ERROR_GPU_IS_LOST),
        }
    }
}

fn identity(fd: impl AsFd) -> Option<(u64, u64)> {
    let facts = rustix::fs::fstat(fd).ok()?;
    Some((facts.st_dev, facts.st_ino))
}

fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::recv(socket, &mut *into, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((0, _)) => return Err(Errno::PIPE),
            received => return received.map(|(length, _)| length),
        }
    }
}

fn connection() -> MutexGuard<'static, Option<Connection>> {
    CONNECTION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// nvmlInit: the first one connects.
fn initialise() -> nvmlReturn_t {
    let mut connection = connection();
    let known = connection.take_if(|connection| !connection.is_open());
    // The descriptor is closed only where it is still the socket.
    forget(known);
    if connection.is_none() {
        match Connection::new() {
            Ok(made) => *connection = Some(made),
            Err(code) => return code,
        }
    }
    USERS.fetch_add(1, Ordering::AcqRel);
    NVML_SUCCESS
}

fn forget(connection: Option<Connection>) {
    let is_anothers = |connection: &Connection| identity(&connection.socket) != Some(connection.identity);
    if let Some(connection) = connection.filter(is_anothers) {
        // The number is another file's by now, which is the program's. One that is ours is closed here.
        let _not_ours = std::os::fd::IntoRawFd::into_raw_fd(connection.socket);
    }
}

/// nvmlShutdown: the last one leaves.
fn shut_down() -> nvmlReturn_t {
    let left = USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| users.checked_sub(1));
    match left {
        Err(_) => NVML_ERROR_UNINITIALIZED,
        Ok(1) => {
            forget(connection().take());
            NVML_SUCCESS
        }
        Ok(_) => NVML_SUCCESS,
    }
}

/// A process's name: of the program's own /proc, as the process that answers sees no other one.
///
/// # Safety
/// `name` is null or has room for `length` characters.
unsafe fn process_name(pid: u32, name: *mut c_char, length: u32) -> nvmlReturn_t {
    if name.is_null() || length == 0 {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else {
        return NVML_ERROR_NOT_FOUND;
    };
    let text = line.split(|byte| *byte == 0).next().unwrap_or_default();
    // As NVIDIA's library does, the name is cut to what fits.
    let fits = text.len().min(length as usize - 1);
    // SAFETY: the text's part and its end fit.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), fits);
        name.add(fits).write(0);
    }
    NVML_SUCCESS
}

/// A query of the program.
///
/// # Safety
/// The arguments are as NVML's reference says for this symbol.
unsafe fn ask(symbol: Symbol, arguments: &[Word]) -> nvmlReturn_t {
    match symbol {
        // The flags tell a library to do without devices, and which of them to leave alone.
        Symbol::nvmlInit | Symbol::nvmlInit_v2 | Symbol::nvmlInitWithFlags => return initialise(),
        Symbol::nvmlShutdown => return shut_down(),
        _ => {}
    }
    if USERS.load(Ordering::Acquire) == 0 {
        return NVML_ERROR_UNINITIALIZED;
    }
    if let (Symbol::nvmlSystemGetProcessName, [pid, name, length]) = (symbol, arguments) {
        // SAFETY: promised by the caller.
        return unsafe { process_name(pid.addr() as u32, name.cast(), length.addr() as u32) };
    }
    let Some(query) = queries::of(symbol) else {
        return NVML_ERROR_NOT_SUPPORTED;
    };
    let (mut message, mut answer) = (vec![0; MOST], vec![0; MOST]);
    let mut m = Writer::new(&mut message);
    m.plain(query.id);
    m.plain(0_u64);
    // SAFETY: promised by the caller.
    if let Err(code) = unsafe { put(query, arguments, &mut m) } {
        return code;
    }
    let Ok(length) = m.finish() else {
        return NVML_ERROR_INVALID_ARGUMENT;
    };
    let outcome = exchange(&mut message[..length], &mut answer);
    let Ok(length) = outcome else {
        return outcome.err().unwrap_or(NVML_ERROR_UNKNOWN);
    };
    // SAFETY: promised by the caller.
    unsafe { take(query, arguments, &answer[8..length]) }.unwrap_or(NVML_ERROR_UNKNOWN)
}

fn exchange(message: &mut [u8], answer: &mut [u8]) -> Result<usize, nvmlReturn_t> {
    let mut connection = connection();
    let known = connection.take_if(|connection| !connection.is_open());
    forget(known);
    if connection.is_none() {
        // A forked child has none, nor has a program that closed all its descriptors.
        *connection = Some(Connection::new().map_err(|_| NVML_ERROR_GPU_IS_LOST)?);
    }
    let Some(open) = connection.as_mut() else {
        return Err(NVML_ERROR_GPU_IS_LOST);
    };
    let outcome = open.exchange(message, answer);
    if outcome.is_err() {
        // A late answer would be taken for the next one's.
        forget(connection.take());
    }
    outcome
}

/// So many elements are there for a list, as the program says and as a message can hold.
///
/// # Safety
/// As for [`ask`].
unsafe fn room(query: &Query, arguments: &[Word], place: usize, element: usize) -> usize {
    let count = arguments[place];
    let count = match query.parameters[place] {
        Parameter::Number(_) => count.addr() as u32,
        _ if count.is_null() => 0,
        // SAFETY: a place for a number, by NVML's contract.
        _ => unsafe { count.cast::<u32>().read() },
    };
    (count as usize).min(MOST_LIST / element)
}

/// Writes the arguments, each as the query says.
///
/// # Safety
/// As for [`ask`].
unsafe fn put(query: &Query, arguments: &[Word], m: &mut Writer<'_>) -> Result<(), nvmlReturn_t> {
    for (at, (argument, parameter)) in arguments.iter().zip(&query.parameters).enumerate() {
        match (query.list(), parameter) {
            (Some((counted, element, is_read)), _) if counted.list == at => {
                m.flag(!argument.is_null());
                if argument.is_null() {
                    continue;
                }
                // SAFETY: as for `ask`.
                let room = unsafe { room(query, arguments, counted.count, element) };
                m.plain(room as u32);
                if is_read {
                    // SAFETY: so many elements lie there, by NVML's contract.
                    unsafe { m.copy(argument.cast(), room * element) };
                }
            }
            (_, Parameter::Number(_) | Parameter::Device) => m.plain(argument.addr() as u64),
            (_, Parameter::NewDevice) => m.flag(!argument.is_null()),
            (_, Parameter::Text { constant: true }) => {
                if argument.is_null() {
                    m.count(None);
                    continue;
                }
                // SAFETY: a C string, by NVML's contract.
                let text = unsafe { CStr::from_ptr(argument.cast()) }.to_bytes();
                if text.len() > MOST_STRING {
                    return Err(NVML_ERROR_NOT_FOUND);
                }
                m.count(Some(text.len()));
                m.bytes(text);
            }
            (_, Parameter::Pointer { bytes, .. }) => {
                if query.versioned == Some(at) && !argument.is_null() {
                    // SAFETY: a structure that begins with its version, by NVML's contract.
                    let version = unsafe { argument.cast::<u32>().read() };
                    if (version & 0x00ff_ffff) as usize != *bytes {
                        return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
                    }
                }
                m.flag(!argument.is_null());
                if !argument.is_null() {
                    // SAFETY: a value of that size, by NVML's contract.
                    unsafe { m.copy(argument.cast(), *bytes) };
                }
            }
            (_, Parameter::Text { .. } | Parameter::Handle) => return Err(NVML_ERROR_NOT_SUPPORTED),
        }
    }
    Ok(())
}

/// Writes an answer's results to where the program wants them.
///
/// # Safety
/// As for [`ask`].
unsafe fn take(query: &Query, arguments: &[Word], answer: &[u8]) -> Result<nvmlReturn_t, Malformed> {
    let mut m = Reader::new(answer);
    let code = m.plain()?;
    if !has_results(code) {
        return Ok(code);
    }
    // Read before an answer is written over the count.
    let most = query.list().map_or(0, |(counted, element, _)| {
        // SAFETY: as for `ask`.
        element * unsafe { room(query, arguments, counted.count, element) }
    });
    for (at, (argument, parameter)) in arguments.iter().zip(&query.parameters).enumerate() {
        if argument.is_null() {
            continue;
        }
        let bytes = match (query.list(), parameter) {
            (Some((counted, ..)), _) if counted.list == at => {
                let bytes = m.list(1)?.ok_or(Malformed)?;
                &bytes[..bytes.len().min(most)]
            }
            (_, Parameter::NewDevice) => {
                let name = m.plain::<u64>()?;
                if code == NVML_SUCCESS {
                    let name = usize::try_from(name).map_err(|_| Malformed)?;
                    // SAFETY: a place for a handle, by NVML's contract.
                    unsafe { argument.cast::<usize>().write(name) };
                }
                continue;
            }
            (
                _,
                Parameter::Pointer {
                    bytes,
                    constant: false,
                },
            ) => m.bytes(*bytes)?,
            _ => continue,
        };
        // SAFETY: the program's place has as many bytes, by NVML's contract, and is none of ours.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), argument.cast(), bytes.len()) };
    }
    Ok(code)
}

macro_rules! stubs {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case)]
        mod stubs {
            use super::*;
            $(
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $result {
                    // SAFETY: the program's arguments.
                    AsCode::of_code(unsafe { ask(Symbol::$name, &[$(word($parameter)),*]) })
                }
            )*
        }

        const STUBS: Table = Table { $($name: stubs::$name,)* };
    };
}

divvy_abi::nvml_functions! { [stubs] }

unsafe extern "C-unwind" fn error_string(result: nvmlReturn_t) -> *const c_char {
    result.description().as_ptr()
}

/// NVML for programs without a device.
pub const TABLE: Table = Table {
    nvmlErrorString: error_string,
    ..STUBS
};
