//! The kubelet's list of pods, asked from a thread that may wait.

use std::path::PathBuf;

use divvy_container::cdi;
use divvy_kube::pods::Pods;
use divvy_model::SliceRecord;
use tokio::runtime::Handle;

/// Where to ask.
pub struct PodList {
    /// The kubelet's socket.
    pub socket: PathBuf,
    /// The loop that the answer comes by. The caller's thread is none of its own.
    pub runtime: Handle,
}

impl PodList {
    /// The pods; none where the kubelet does not tell.
    pub fn ask(&self) -> Option<Pods> {
        self.runtime.block_on(Pods::ask(&self.socket)).ok()
    }
}

/// What container runtimes call a slice.
pub fn cdi_name(slice: &SliceRecord) -> String {
    format!("{}={}", cdi::SLICE_KIND, cdi::slice_name(slice))
}
