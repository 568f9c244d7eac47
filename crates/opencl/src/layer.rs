//! How the loader puts the layer in front of a driver: `clGetLayerInfo` and `clInitLayer` of cl_loader_layers.

use core::ffi::c_void;
use std::sync::Once;

use crate::cl::*;
use crate::{below, driver, hooks};

/// The name that tools show.
const NAME: &core::ffi::CStr = c"Divvy";

/// `clGetLayerInfo`.
///
/// # Safety
/// As cl_loader_layers says: `value` has `size` bytes or is null, `out` is a place for a number or null.
pub unsafe extern "C" fn get_layer_info(name: u32, size: usize, value: *mut c_void, out: *mut usize) -> i32 {
    let version = CL_LAYER_API_VERSION_100.to_ne_bytes();
    let bytes = match name {
        CL_LAYER_API_VERSION => &version[..],
        CL_LAYER_NAME => NAME.to_bytes_with_nul(),
        _ => return CL_INVALID_VALUE,
    };
    if !value.is_null() {
        if size < bytes.len() {
            return CL_INVALID_VALUE;
        }
        // SAFETY: the caller's promise, and it fits.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), bytes.len()) };
    }
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(bytes.len()) };
    }
    CL_SUCCESS
}

/// `clInitLayer`: gives the loader a table in which the limiter's functions stand before those of `target`. Pointers that
/// this layer does not name are handed on.
///
/// # Safety
/// As cl_loader_layers says: `target` has `count` pointers and stays, the other two are places for results.
pub unsafe extern "C" fn init_layer(
    count: u32,
    target: *const *const c_void,
    count_out: *mut u32,
    table_out: *mut *const *const c_void,
) -> i32 {
    hooks::guarded(CL_OUT_OF_RESOURCES, || {
        if target.is_null() || count_out.is_null() || table_out.is_null() {
            return CL_INVALID_VALUE;
        }
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            divvy_abi::silence_panics();
            divvy_limiter::below::stand_on(&driver::TABLE);
            divvy_limiter::serve_opencl();
        });
        // SAFETY: the caller's promise.
        let mut table = unsafe { core::slice::from_raw_parts(target, count as usize) }.to_vec();
        // A list may name the layer twice. It stands beneath itself then, and has nothing to add: its functions would call
        // each other for ever.
        let is_there = hooks::all().any(|(entry, address)| table.get(entry as usize) == Some(&address));
        if is_there {
            // SAFETY: the caller's promise.
            unsafe {
                count_out.write(count);
                table_out.write(target);
            }
            return CL_SUCCESS;
        }
        below::set(target, count as usize);
        for (entry, address) in hooks::all() {
            // Where the driver has no such function, neither has the layer.
            if let Some(place) = table.get_mut(entry as usize).filter(|place| !place.is_null()) {
                *place = address;
            }
        }
        // The loader keeps it for the life of the process.
        let table = Vec::leak(table);
        // SAFETY: the caller's promise.
        unsafe {
            count_out.write(count);
            table_out.write(table.as_ptr());
        }
        CL_SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Entry;

    #[test]
    fn the_layer_tells_its_version_and_its_name() {
        let mut version = 0_u32;
        let mut size = 0;
        // SAFETY: valid out-parameters, as large as they say; or none.
        unsafe {
            let at = (&raw mut version).cast();
            assert_eq!(
                get_layer_info(CL_LAYER_API_VERSION, 4, at, &raw mut size),
                CL_SUCCESS
            );
            assert_eq!((version, size), (100, 4));
            assert_eq!(
                get_layer_info(CL_LAYER_API_VERSION, 3, at, &raw mut size),
                CL_INVALID_VALUE
            );
            let none = core::ptr::null_mut();
            assert_eq!(get_layer_info(CL_LAYER_NAME, 0, none, &raw mut size), CL_SUCCESS);
            assert_eq!(size, 6);
            assert_eq!(get_layer_info(7, 0, none, &raw mut size), CL_INVALID_VALUE);
        }
    }

    #[test]
    fn pointers_of_a_newer_loader_are_handed_on_and_those_of_an_older_one_stay_away() {
        let there = core::ptr::dangling::<c_void>();
        let mut newer = vec![there; 400];
        newer[Entry::clCreatePipe as usize] = core::ptr::null();
        let mut table: *const *const c_void = core::ptr::null();
        let mut count = 0;
        let mut init = |target: &'static [*const c_void]| {
            // SAFETY: a table that stays, and valid out-parameters.
            let result = unsafe {
                init_layer(
                    target.len() as u32,
                    target.as_ptr(),
                    &raw mut count,
                    &raw mut table,
                )
            };
            assert_eq!((result, count as usize), (CL_SUCCESS, target.len()));
            // SAFETY: as long as the layer says.
            unsafe { core::slice::from_raw_parts(table, target.len()) }
        };
        let made = init(newer.leak());
        assert_ne!(made[Entry::clCreateBuffer as usize], there, "the layer's own");
        assert_eq!(made[Entry::clCreateSubBuffer as usize], there);
        assert!(
            made[Entry::clCreatePipe as usize].is_null(),
            "the driver has none"
        );
        assert_eq!(made[399], there);
        let before = below::address(Entry::clCreateBuffer);
        let again = init(made);
        assert_eq!(
            (again.as_ptr(), again.len()),
            (made.as_ptr(), 400),
            "beneath itself"
        );
        assert_eq!(below::address(Entry::clCreateBuffer), before);
        let made = init(vec![there; 20].leak());
        assert_eq!(made.len(), 20);
        assert!(below::address(Entry::clCreatePipe).is_none());
        // SAFETY: none of the places is used.
        let refused = unsafe {
            init_layer(
                20,
                core::ptr::null(),
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        assert_eq!(refused, CL_INVALID_VALUE);
    }
}
