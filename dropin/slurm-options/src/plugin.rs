//! What Slurm's loader looks for, by the names of spank.h.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use divvy_model::spank;

use crate::slurm::{self, Context, Handle, SpankOption};
use crate::typed::{self, OPTIONS};

/// A version of Slurm, and the mark by which `divvy slurm setup` finds its place in the file.
#[repr(C)]
pub struct Version {
    number: u32,
    mark: [u8; 28],
}

/// The plugin's name.
#[used]
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 6] = *b"divvy\0";

/// Its kind.
#[used]
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The version of Slurm that may load it: none, until `divvy slurm setup` writes the node's own. Slurm reads the first number.
#[used]
#[unsafe(no_mangle)]
pub static plugin_version: Version = Version {
    number: 0,
    mark: spank::MARK,
};

/// The plugin's own version.
#[used]
#[unsafe(no_mangle)]
pub static spank_plugin_version: u32 = 1;

/// What Slurm takes for a failure.
const FAILED: c_int = -1;

/// Registers the options, where a user or a step may have typed them.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init(handle: Handle, _count: c_int, _words: *mut *mut c_char) -> c_int {
    guarded(|| {
        std::panic::set_hook(Box::new(|_| {}));
        if slurm::context() == Context::Other {
            return 0;
        }
        for (number, option) in (0..).zip(&OPTIONS) {
            let mut record = SpankOption {
                name: option.name.as_ptr(),
                arginfo: option.value.as_ptr(),
                usage: option.usage.as_ptr(),
                has_arg: 1,
                val: number,
                callback: typed,
            };
            if !slurm::register(handle, &mut record) {
                slurm::error("divvy: this Slurm did not take the options --divvy-memory and --divvy-compute");
                return FAILED;
            }
        }
        0
    })
}

/// Slurm tells a value: where it was typed, and again in slurmstepd.
extern "C" fn typed(option: c_int, value: *const c_char, _remote: c_int) -> c_int {
    guarded(|| {
        let text = match value.is_null() {
            true => "".into(),
            // SAFETY: Slurm hands over a text that ends with a zero and lives for the call.
            false => unsafe { CStr::from_ptr(value) }.to_string_lossy(),
        };
        let option = usize::try_from(option).unwrap_or(usize::MAX);
        match typed::keep(option, &text) {
            Ok(()) => 0,
            Err(sentence) => {
                slurm::error(&sentence);
                FAILED
            }
        }
    })
}

/// In slurmstepd, before tasks start: the task prolog is told what the step asked for. What a user's variables say of it goes.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_user_init(handle: Handle, _count: c_int, _words: *mut *mut c_char) -> c_int {
    guarded(|| {
        for (number, option) in OPTIONS.iter().enumerate() {
            let value = typed::kept(number);
            if !slurm::set_variable(handle, option.variable, value.as_deref()) {
                slurm::error("divvy: the task prolog cannot be told of the step's --divvy options");
                return FAILED;
            }
        }
        0
    })
}

/// No panic reaches Slurm.
fn guarded(work: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(FAILED)
}
