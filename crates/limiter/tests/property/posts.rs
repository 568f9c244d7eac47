//! The processes' posts to each other: pointers, pools' pointers and descriptors that may be opened, in files that all
//! of them see.

use std::os::fd::AsRawFd as _;

use divvy_abi::*;

use crate::emulated::get;
use crate::worker::Worker;

impl Worker {
    /// Posts something that may be opened, until the next post replaces it.
    pub fn post(&mut self, what: &str) {
        let name = format!("post-{}", self.random.below(4));
        let draft = mail(&format!(
            "{name}-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&draft, what).expect("the folder is there");
        std::fs::rename(&draft, mail(&name)).expect("the folder is there");
    }

    pub fn post_pointer(&mut self, pointer: CUdeviceptr) {
        let handle: CUipcMemHandle = get!(cuIpcGetMemHandle(pointer));
        let bytes = handle.reserved.map(|byte| byte as u8);
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.post(&format!("pointer {digits}"));
    }

    pub fn post_pooled(&mut self, pointer: CUdeviceptr) {
        let data: CUmemPoolPtrExportData = get!(cuMemPoolExportPointer(pointer));
        let digits: String = data.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
        let (process, number) = (std::process::id(), self.name.as_raw_fd());
        self.post(&format!("pooled {process} {number} {digits}"));
    }
}

/// A file that all processes see.
pub fn mail(name: &str) -> std::path::PathBuf {
    let folder = std::env::var_os("DIVVY_RUN_DIR").expect("the run directory");
    std::path::Path::new(&folder).join(name)
}

/// The memory file whose descriptor a process has posted, if it still is one.
pub fn memory_file(process: &str, number: &str) -> Option<std::fs::File> {
    let path = format!("/proc/{process}/fd/{number}");
    let is_memory = std::fs::read_link(&path).is_ok_and(|file| file.to_string_lossy().contains("memfd"));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    file.ok().filter(|_| is_memory)
}

pub fn digit(digits: &str, at: usize) -> u8 {
    u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits")
}
