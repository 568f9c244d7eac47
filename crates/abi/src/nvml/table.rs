//! The table of NVML's function pointers: one typed field for each exported symbol.

use core::ffi::c_char;

use super::{NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_UNKNOWN, Symbol, nvmlReturn_t};
use crate::Answer;
use crate::table::function_table;

impl Answer for nvmlReturn_t {
    const NOT_SUPPORTED: Self = NVML_ERROR_NOT_SUPPORTED;
    const UNKNOWN: Self = NVML_ERROR_UNKNOWN;
}

impl Answer for *const c_char {
    const NOT_SUPPORTED: Self = c"Not Supported".as_ptr();
    const UNKNOWN: Self = c"Unknown Error".as_ptr();
}

macro_rules! table {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        function_table! { $($name ($($of),*) -> $result;)* }
    };
}

crate::nvml_functions! { [table] }

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use core::sync::atomic::{AtomicUsize, Ordering};

    static LAST: AtomicUsize = AtomicUsize::new(usize::MAX);

    #[test]
    fn unsupported_functions_say_so_and_tell_the_listener() {
        on_unsupported(|symbol| LAST.store(symbol.index(), Ordering::Relaxed));
        // SAFETY: an unsupported function touches none of its arguments.
        let result = unsafe { (Table::UNSUPPORTED.nvmlDeviceGetCount_v2)(core::ptr::null_mut()) };
        assert_eq!(result, NVML_ERROR_NOT_SUPPORTED);
        assert_eq!(
            LAST.load(Ordering::Relaxed),
            Symbol::nvmlDeviceGetCount_v2.index()
        );
    }

    #[test]
    fn a_table_knows_what_it_implements() {
        unsafe extern "C-unwind" fn init() -> nvmlReturn_t {
            nvmlReturn_t(0)
        }
        let table = Table {
            nvmlInit_v2: init,
            ..Table::UNSUPPORTED
        };
        assert!(table.implements(Symbol::nvmlInit_v2));
        assert!(!table.implements(Symbol::nvmlInit));
        assert_eq!(table.address(Symbol::nvmlInit_v2), init as *const c_void);
    }
}
