//! What a program can ask of and set on a function or a kernel: the two are accepted in each other's place.

use crate::Result;
use crate::context::Context;
use crate::handle::Handles;
use crate::launch::{MAX_DYNAMIC_SHARED, max_threads};
use crate::library::Kernel;
use crate::module::{Function, Modules, Settings};
use crate::occupancy;
use divvy_abi::*;
use divvy_device::Device;
use divvy_device::product::profile::SHARED_PER_BLOCK;
use divvy_ptx::{Module, Space};
use std::ffi::CStr;
use std::sync::Arc;

/// What a CUfunction or CUkernel names.
pub enum Target {
    /// A function of a module.
    Function(Arc<Function>),
    /// A kernel of a library.
    Kernel(Arc<Kernel>),
}

impl Target {
    /// The object of a handle.
    pub fn find(modules: &Modules, kernels: &Handles<Kernel>, handle: u64) -> Result<Target> {
        if let Some(function) = modules.functions.get(handle) {
            return Ok(Target::Function(function));
        }
        kernels
            .get(handle)
            .map(Target::Kernel)
            .ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Its name.
    pub fn c_name(&self) -> &CStr {
        match self {
            Target::Function(function) => &function.c_name,
            Target::Kernel(kernel) => &kernel.c_name,
        }
    }

    /// Itself in a context.
    pub fn function(&self, context: &Arc<Context>, modules: &Modules) -> Result<Arc<Function>> {
        match self {
            Target::Function(function) => Ok(Arc::clone(function)),
            Target::Kernel(kernel) => kernel.function(context, modules),
        }
    }

    /// The compute capability that its PTX is for.
    fn ptx_version(&self, device: &Device) -> Result<i32> {
        let target = match self {
            Target::Function(function) => function.instance.program.module().target(),
            Target::Kernel(kernel) => kernel.module(device.facts.profile.sm())?.target(),
        };
        Ok(if target == 0 {
            device.facts.profile.sm()
        } else {
            target
        } as i32)
    }

    /// Bytes of constant memory that its module declares, as a device runs it.
    fn const_bytes(&self, device: &Device) -> Result<i32> {
        let sum = |module: &Module| {
            let constants = module
                .globals()
                .iter()
                .filter(|global| global.space == Space::Const);
            constants.map(|global| global.size as i32).sum()
        };
        match self {
            Target::Function(function) => Ok(sum(function.instance.program.module())),
            Target::Kernel(kernel) => Ok(sum(&*kernel.module(device.facts.profile.sm())?)),
        }
    }

    /// Looks at its code, as a device runs it.
    pub fn describe_on<T>(&self, device: &Device, look: impl FnOnce(&divvy_ptx::Kernel) -> T) -> Result<T> {
        match self {
            Target::Function(function) => Ok(look(function.kernel())),
            Target::Kernel(kernel) => kernel.describe(device.facts.profile.sm(), look),
        }
    }

    fn with_settings<T>(&self, device: &Device, body: impl FnOnce(&Settings) -> T) -> T {
        match self {
            Target::Function(function) => body(&function.settings),
            Target::Kernel(kernel) => body(&kernel.settings(device.ordinal)),
        }
    }
}

/// CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: not set.
const NO_CARVEOUT: i32 = -1;

/// The value of an attribute on a device.
pub fn attribute(target: &Target, number: CUfunction_attribute, device: &Device) -> Result<i32> {
    let set = target.with_settings(device, |settings| settings.get(number.0));
    let profile = device.facts.profile;
    if number == CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES {
        return target.const_bytes(device);
    }
    if number == CU_FUNC_ATTRIBUTE_PTX_VERSION {
        return target.ptx_version(device);
    }
    target.describe_on(device, |kernel| {
        Ok(match number {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => max_threads(kernel) as i32,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => kernel.static_shared_bytes as i32,
            CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => kernel.local_bytes as i32,
            CU_FUNC_ATTRIBUTE_NUM_REGS => occupancy::registers(kernel) as i32,
            CU_FUNC_ATTRIBUTE_BINARY_VERSION => profile.sm() as i32,
            CU_FUNC_ATTRIBUTE_CACHE_MODE_CA => 1,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                set.unwrap_or(SHARED_PER_BLOCK.saturating_sub(kernel.static_shared_bytes) as i32)
            }
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => set.unwrap_or(NO_CARVEOUT),
            CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
            | CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            | CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => set.unwrap_or(0),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    })?
}

/// Sets an attribute on a device.
pub fn set_attribute(target: &Target, number: CUfunction_attribute, value: i32, device: &Device) -> Result {
    match number {
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            let most = target.describe_on(device, |kernel| {
                device
                    .facts
                    .profile
                    .limits()
                    .shared_per_block_optin
                    .saturating_sub(kernel.static_shared_bytes)
            })?;
            if u32::try_from(value).is_ok_and(|value| value <= most) {
                target.with_settings(device, |settings| settings.set(MAX_DYNAMIC_SHARED, value));
                Ok(())
            } else {
                Err(CUDA_ERROR_INVALID_VALUE)
            }
        }
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
            if !(-1..=100).contains(&value) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            target.with_settings(device, |settings| settings.set(number.0, value));
            Ok(())
        }
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
        | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
        | CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        | CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}
