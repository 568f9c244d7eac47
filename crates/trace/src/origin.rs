//! Which call of the program a stream's work came from, and how much memory is in use.

use std::cell::Cell;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::clock::now_ns;
use crate::event::{Event, Operation};
use crate::sink::{self, is_on};

/// A call that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Its thread.
    pub tid: u32,
    /// When it began.
    pub begin: u64,
    /// Its number.
    pub number: u64,
    /// The function.
    pub name: &'static str,
}

thread_local! {
    static CURRENT: Cell<Option<Origin>> = const { Cell::new(None) };
}

/// The call that this thread is in; None where nothing is traced.
#[inline]
pub fn origin() -> Option<Origin> {
    if !is_on() {
        return None;
    }
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// From here on this thread is in another call; the one that it was in.
pub(crate) fn set(origin: Option<Origin>) -> Option<Origin> {
    CURRENT.try_with(|current| current.replace(origin)).ok().flatten()
}

/// Work of a stream has ended.
pub fn operation(operation: Operation) {
    if is_on() {
        sink::write(&Event::Operation(operation));
        memory();
    }
}

/// This process has opened a device.
pub fn device(ordinal: u32, name: &str) {
    if is_on() {
        sink::write(&Event::Device {
            at: now_ns(),
            ordinal,
            name: name.to_owned(),
        });
    }
}

/// Device memory in use by this process, in bytes, by device.
type InUse = fn() -> Vec<u64>;
static IN_USE: OnceLock<InUse> = OnceLock::new();

/// How to ask for the memory in use. It is asked for behind each call and each operation.
pub fn memory_by(in_use: InUse) {
    let _first = IN_USE.set(in_use);
}

/// Records how much memory is in use, where that has changed.
pub(crate) fn memory() {
    static LAST: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let Some(in_use) = IN_USE.get() else { return };
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let now = in_use();
    if *last == now {
        return;
    }
    let at = now_ns();
    for (device, &bytes) in now.iter().enumerate() {
        if last.get(device).copied().unwrap_or(0) != bytes {
            let device = device as u32;
            sink::write(&Event::Memory { at, device, bytes });
        }
    }
    *last = now;
}
