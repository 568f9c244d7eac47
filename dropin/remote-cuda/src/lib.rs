//! The split driver's library: a libcuda.so.1 for a program without a device. A worker makes its calls.
//!
//! In a container the worker's socket lies at a fixed path; elsewhere `DIVVY_REMOTE` names it. Without it, and once the
//! worker is gone, calls answer `CUDA_ERROR_DEVICE_UNAVAILABLE`.

mod log;

use std::path::{Path, PathBuf};

use divvy_remote::client::Told;
use divvy_remote::stream::emulated::{Distant, Network};
use divvy_remote::{Connector, LocalConnector};

divvy_abi::export_table!(divvy_remote::client::TABLE);

/// The setting is read before the program runs, so that it may clean its environment. The first call connects.
#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE_ENVIRONMENT: extern "C" fn() = capture;

/// Where a container of a slice has the folder of its sockets. No variable decides there.
const IN_CONTAINER: &str = "/run/divvy/slice";

/// The worker's socket, if this program has one.
fn socket() -> Option<PathBuf> {
    if Path::new(IN_CONTAINER).is_dir() {
        return Some(Path::new(IN_CONTAINER).join("worker.sock"));
    }
    let named = std::env::var_os("DIVVY_REMOTE").filter(|socket| !socket.is_empty());
    named.map(PathBuf::from)
}

extern "C" fn capture() {
    log::capture();
    // Most of what is not served never reaches a server: the program's own table has no stub for it.
    divvy_abi::on_unsupported(|symbol| log::tell(Told::Unserved(symbol)));
    if let Some(socket) = socket() {
        let connector = LocalConnector::new(socket);
        let connector: Box<dyn Connector> = match Network::of_environment() {
            Some(network) => Box::new(Distant { connector, network }),
            None => Box::new(connector),
        };
        let _first = divvy_remote::client::connect(connector, log::tell);
    }
}
