//! The JIT options of cuModuleLoadDataEx, cuLibraryLoadData and cuLinkCreate: where a program wants messages.

use divvy_abi::*;

/// The log buffers a program offered, and the registers it allows. All other options steer a compiler that does not
/// exist here.
#[derive(Default)]
pub struct JitOptions {
    /// CU_JIT_MAX_REGISTERS: most registers of a thread, where set.
    pub max_registers: Option<u32>,
    error: Buffer,
    info: Buffer,
}

#[derive(Default)]
struct Buffer {
    address: u64,
    bytes: usize,
    /// Where the program reads how much was written.
    written: u64,
}

impl JitOptions {
    /// Reads an option list. The buffers must outlive the value, as CUDA requires of them.
    ///
    /// # Safety
    /// `keys` and `values` hold `count` entries each, and the log buffers are as large as the list says.
    pub unsafe fn read(count: u32, keys: *const CUjit_option, values: *mut *mut c_void) -> JitOptions {
        let mut options = JitOptions::default();
        if keys.is_null() || values.is_null() {
            return options;
        }
        for at in 0..count as usize {
            // SAFETY: both lists have `count` entries.
            let (key, slot) = unsafe { (keys.add(at).read(), values.add(at)) };
            // SAFETY: as above.
            let value = unsafe { slot.read() } as u64;
            match key {
                CU_JIT_MAX_REGISTERS => options.max_registers = Some(value as u32).filter(|&most| most > 0),
                CU_JIT_ERROR_LOG_BUFFER => options.error.address = value,
                CU_JIT_INFO_LOG_BUFFER => options.info.address = value,
                // The size is a 32-bit number in a pointer-sized entry.
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    options.error.bytes = value as u32 as usize;
                    options.error.written = slot as u64;
                }
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    options.info.bytes = value as u32 as usize;
                    options.info.written = slot as u64;
                }
                _ => {}
            }
        }
        options.error.write("");
        options.info.write("");
        options
    }

    /// Puts a message into the error log.
    pub fn report(&self, message: impl std::fmt::Display) {
        self.error.write(&format!("{message}\n"));
    }
}

impl Buffer {
    fn write(&self, text: &str) {
        if self.address == 0 || self.bytes == 0 {
            return;
        }
        let count = text.len().min(self.bytes - 1);
        let target = self.address as *mut u8;
        // SAFETY: the program gave a buffer of `bytes` bytes; `count` and a NUL fit.
        unsafe {
            target.copy_from_nonoverlapping(text.as_ptr(), count);
            target.add(count).write(0);
        }
        if self.written != 0 {
            // SAFETY: the address of the list entry that gave the size, which CUDA overwrites.
            unsafe { (self.written as *mut *mut c_void).write_unaligned(count as *mut c_void) };
        }
    }
}
