//! cuGetProcAddress: from a name, a CUDA version and flags to the function of exactly that variant.

use super::TABLE;
use super::args::{Out, Text};
use crate::Result;
use divvy_abi::*;
use divvy_device::log;

entry! {
    fn cuGetProcAddress(name: Text, function: Out<*mut c_void>, version: i32, flags: u64) {
        answer(&name, &function, version, flags).0
    }

    fn cuGetProcAddress_v2(
        name: Text,
        function: Out<*mut c_void>,
        version: i32,
        flags: u64,
        status: Out<CUdriverProcAddressQueryResult>,
    ) {
        let (outcome, found) = answer(&name, &function, version, flags);
        status.set_if_wanted(found);
        outcome
    }
}

fn answer(
    name: &Text,
    function: &Out<*mut c_void>,
    version: i32,
    flags: u64,
) -> (Result, CUdriverProcAddressQueryResult) {
    let missing = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    let (Ok(name), Ok(())) = (name.get(), function.set(std::ptr::null_mut())) else {
        return (Err(CUDA_ERROR_INVALID_VALUE), missing);
    };
    let query = query(name, version, flags);
    let Query::Found(symbol) = query else {
        // The empty name is the runtime's way to see whether this function works at all.
        if !name.is_empty() {
            log::line(format_args!(
                "cuGetProcAddress: {name} is unknown as of CUDA {version}"
            ));
        }
        return (Err(CUDA_ERROR_NOT_FOUND), query.into());
    };
    let address = exported(symbol).unwrap_or(TABLE.address(symbol));
    (function.set(address.cast_mut()), query.into())
}
