//! One pointer for each symbol of a library below, and the calls through them.

/// Defines `SLOTS`, the module `forward` and the table `FORWARD` over the rows of one library. The module that invokes it has
/// `Symbol`, `Table`, and `fn resolve(symbol: Symbol) -> *const c_void`, which finds a symbol's function at its first call.
macro_rules! slots {
    ($($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        /// The target address of each symbol.
        #[repr(C)]
        #[allow(non_snake_case)]
        struct Slots {
            $($name: core::sync::atomic::AtomicPtr<core::ffi::c_void>,)*
        }

        static SLOTS: Slots = Slots {
            $($name: core::sync::atomic::AtomicPtr::new(
                first_call::$name as *const core::ffi::c_void as *mut core::ffi::c_void,
            ),)*
        };

        const _: () = assert!(size_of::<Slots>() == size_of::<Table>());

        impl Slots {
            fn of(&self, symbol: Symbol) -> &core::sync::atomic::AtomicPtr<core::ffi::c_void> {
                let first = core::ptr::from_ref(self).cast::<core::sync::atomic::AtomicPtr<core::ffi::c_void>>();
                // SAFETY: the slots are one pointer for each symbol, in the order of the symbols' numbers.
                unsafe { &*first.add(symbol.index()) }
            }
        }

        #[allow(non_snake_case)]
        mod first_call {
            $(
                #[cold]
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $result {
                    let address = super::resolve(super::Symbol::$name);
                    // SAFETY: the address belongs to a library's function of this name, whose type is the table's.
                    let function = unsafe {
                        core::mem::transmute::<
                            *const core::ffi::c_void,
                            unsafe extern "C-unwind" fn($($of),*) -> $result,
                        >(address)
                    };
                    // SAFETY: the arguments are handed on as they came.
                    unsafe { function($($parameter),*) }
                }
            )*
        }

        /// Calls into the library below.
        #[allow(non_snake_case)]
        pub(crate) mod forward {
            $(
                #[inline]
                pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> $result {
                    let address = super::SLOTS.$name.load(core::sync::atomic::Ordering::Relaxed).cast_const();
                    // SAFETY: a slot holds its first-call stub, or the function of this name from the library below or
                    // a stand-in. All have this type.
                    let function = unsafe {
                        core::mem::transmute::<
                            *const core::ffi::c_void,
                            unsafe extern "C-unwind" fn($($of),*) -> $result,
                        >(address)
                    };
                    // SAFETY: the arguments are handed on as they came.
                    unsafe { function($($parameter),*) }
                }
            )*
        }

        /// Every symbol passed through.
        pub(crate) const FORWARD: Table = Table { $($name: forward::$name,)* };
    };
}
pub(crate) use slots;
