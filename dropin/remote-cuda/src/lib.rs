//! The split driver's library: a libcuda.so.1 for a program without a device. A worker makes its calls.
//!
//! `DIVVY_REMOTE` names the worker's socket. Without it, and once the worker is gone, calls answer
//! `CUDA_ERROR_DEVICE_UNAVAILABLE`.

use divvy_remote::LocalConnector;

divvy_abi::export_table!(divvy_remote::client::TABLE);

/// The setting is read before the program runs, so that it may clean its environment. The first call connects.
#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE_ENVIRONMENT: extern "C" fn() = capture;

extern "C" fn capture() {
    // A program that is more than its caller does not take the caller's word for where its device is.
    let socket = std::env::var_os("DIVVY_REMOTE").filter(|socket| !socket.is_empty());
    if let Some(socket) = socket {
        let connector = LocalConnector::new(socket.into());
        let _first = divvy_remote::client::connect(Box::new(connector), |_| {});
    }
}
