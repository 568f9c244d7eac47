//! The driver that a program sees: each call becomes a message, and the server's answer becomes its result.
//!
//! A process has one connection ([`connect`]), and each of its threads a transport of its own, which is opened at the
//! thread's first call. Without a connection, and once the server is gone, every call answers
//! `CUDA_ERROR_DEVICE_UNAVAILABLE`.

mod area;
mod arguments;
mod attribute;
mod callback;
mod context;
mod copy3d;
mod device;
mod function;
mod given;
mod launch;
mod link;
mod local;
mod location;
mod managed;
mod memcpy;
mod module;
mod names;
mod node;
mod occupancy;
mod parameters;
mod pinned;
mod primary;
mod start;
mod stubs;
mod texture;
mod thread;
mod visible;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use divvy_abi::Symbol;

use crate::Connector;
use crate::fork::OfProcess;
use crate::handle::{Id, Kind, Origin};

pub(crate) use arguments::Count;
pub use stubs::TABLE;

/// A process's connection.
struct Client {
    connector: Box<dyn Connector>,
    threads: AtomicU32,
    objects: AtomicU64,
    /// How many calls all threads have submitted.
    submitted: AtomicU32,
    /// What is known of functions.
    functions: OfProcess<parameters::Known>,
    /// The memory that is shared with the server, once it was needed.
    area: OfProcess<OnceLock<Option<area::Area>>>,
    /// Told of what a log should have.
    told: fn(Told),
}

/// What a program's library may want to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The server answered this call with `CUDA_ERROR_NOT_SUPPORTED`.
    Unserved(Symbol),
    /// A thread's call answers `CUDA_ERROR_OUT_OF_MEMORY`: as many threads of the program make calls as the server
    /// serves. It is told once.
    Full,
    /// This program's calls answer `CUDA_ERROR_DEVICE_UNAVAILABLE`: as many programs as may have a worker have one.
    Busy,
}

static CLIENT: OnceLock<Client> = OnceLock::new();

/// Connects this process: every call from now on goes to this server. Only the first connection counts; gives whether
/// this one does.
///
/// `told` gets what a library can log.
pub fn connect(connector: Box<dyn Connector>, told: fn(Told)) -> bool {
    let client = Client {
        connector,
        threads: AtomicU32::new(0),
        objects: AtomicU64::new(1),
        submitted: AtomicU32::new(0),
        functions: OfProcess::new(),
        area: OfProcess::new(),
        told,
    };
    CLIENT.set(client).is_ok()
}

fn client() -> Option<&'static Client> {
    CLIENT.get()
}

/// A name for an object that a call is about to create; 0 where there is no connection.
fn new_name(kind: Kind) -> u64 {
    client().map_or(0, |client| {
        let serial = client.objects.fetch_add(1, Ordering::Relaxed);
        Id::new(kind, Origin::Client, serial).bits()
    })
}
