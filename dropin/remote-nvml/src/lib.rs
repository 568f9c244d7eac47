//! The split driver's NVML: a libnvidia-ml.so.1 for a program without a device. A process of the slice answers its
//! queries, with the slice's figures.
//!
//! In a container that process's socket lies at a fixed path; elsewhere it lies beside the one that `DIVVY_REMOTE` names.

use std::path::{Path, PathBuf};

divvy_abi::export_nvml_table!(divvy_remote::nvml::client::TABLE);

/// The setting is read before the program runs, so that it may clean its environment. nvmlInit connects.
#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE_ENVIRONMENT: extern "C" fn() = capture;

/// Where a container of a slice has the folder of its sockets. No variable decides there.
const IN_CONTAINER: &str = "/run/divvy/slice";

/// The socket's name, beside the worker's.
const NAME: &str = "nvml.sock";

fn socket() -> Option<PathBuf> {
    if Path::new(IN_CONTAINER).is_dir() {
        return Some(Path::new(IN_CONTAINER).join(NAME));
    }
    let workers = std::env::var_os("DIVVY_REMOTE").filter(|socket| !socket.is_empty())?;
    Some(Path::new(&workers).with_file_name(NAME))
}

extern "C" fn capture() {
    if let Some(socket) = socket() {
        divvy_remote::nvml::client::connect_at(socket);
    }
}
