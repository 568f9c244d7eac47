//! Functions: what they need, and what may be set on them.

use super::args::{Handle, Out};
use super::current;
use super::find;
use crate::Result;
use crate::driver::driver;
use crate::function::{Target, attribute, set_attribute};
use divvy_abi::*;

entry! {
    fn cuFuncGetAttribute(value: Out<i32>, number: CUfunction_attribute, function: Handle<CUfunction>) {
        let target = find::target(function.0)?;
        value.set(attribute(&target, number, &current::context()?.device)?)
    }

    fn cuFuncSetAttribute(function: Handle<CUfunction>, number: CUfunction_attribute, value: i32) {
        let target = find::target(function.0)?;
        set_attribute(&target, number, value, &current::usable()?.device)
    }

    // The first-level cache and shared memory are not the same memory here, so there is nothing to divide.
    fn cuFuncSetCacheConfig(function: Handle<CUfunction>, _config: CUfunc_cache) {
        find::target(function.0).map(drop)
    }

    fn cuFuncSetSharedMemConfig(function: Handle<CUfunction>, _config: CUsharedconfig) {
        find::target(function.0).map(drop)
    }

    fn cuFuncGetModule(module: Out<CUmodule>, function: Handle<CUfunction>) {
        module.required()?;
        let function = find::target(function.0)?.function(&current::usable()?, &driver()?.modules)?;
        module.set(function.instance.handle as CUmodule)
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: Handle<CUfunction>) {
        name.set(find::target(function.0)?.c_name().as_ptr())
    }

    fn cuFuncGetParamInfo(function: Handle<CUfunction>, index: usize, offset: Out<usize>, size: Out<usize>) {
        param_info(&find::target(function.0)?, index, &offset, &size)
    }

    fn cuFuncGetParamCount(function: Handle<CUfunction>, count: Out<usize>) {
        count.set(find::describe(&find::target(function.0)?, |kernel| kernel.params.len())?)
    }

    fn cuFuncIsLoaded(state: Out<CUfunctionLoadingState>, function: Handle<CUfunction>) {
        find::target(function.0)?;
        state.set(CU_FUNCTION_LOADING_STATE_LOADED)
    }

    fn cuFuncLoad(function: Handle<CUfunction>) {
        find::target(function.0).map(drop)
    }
}

/// Where a parameter lies, and its size.
pub fn param_info(target: &Target, index: usize, offset: &Out<usize>, size: &Out<usize>) -> Result {
    let place = find::describe(target, |kernel| {
        kernel
            .params
            .get(index)
            .map(|param| (param.offset as usize, param.size as usize))
    })?;
    let (at, bytes) = place.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    offset.set(at)?;
    size.set_if_wanted(bytes);
    Ok(())
}
