//! Kernel nodes: a launch with its parameters as they were when the node was made.

use super::foreign::Foreign;
use crate::Result;
use crate::context::Context;
use crate::launch::{self, Geometry, Launcher};
use crate::module::Function;
use crate::params;
use divvy_abi::*;
use divvy_device::engine::client::Running;
use std::sync::Arc;

/// What a kernel node does.
#[derive(Clone)]
pub struct KernelWork {
    /// The function in its context.
    pub function: Arc<Function>,
    /// The CUfunction the program named, or 0.
    pub func: u64,
    /// The CUkernel the program named, or 0.
    pub kern: u64,
    /// Grid, block and shared memory.
    pub geometry: Geometry,
    /// The parameters' values.
    pub params: Arc<Params>,
    /// Launch attributes that were set.
    pub attributes: Attributes,
}

/// The parameters of a launch, laid out as the kernel declares them, and the lists that cuGraphKernelNodeGetParams
/// lends to the program until the node changes.
pub struct Params {
    /// The values.
    pub bytes: Box<[u8]>,
    packed: bool,
    /// For each parameter, the address of its value in `bytes`.
    values: Box<[usize]>,
    size: Box<usize>,
    extra: Box<[usize]>,
}

impl Params {
    /// Parameters of a kernel. `packed`: the program gave them as one buffer.
    pub fn new(kernel: &divvy_ptx::Kernel, bytes: Vec<u8>, packed: bool) -> Arc<Params> {
        let bytes = bytes.into_boxed_slice();
        let first = bytes.as_ptr() as usize;
        let values = kernel
            .params
            .iter()
            .map(|param| first + param.offset as usize)
            .collect();
        let size = Box::new(bytes.len());
        let extra = Box::new([
            CU_LAUNCH_PARAM_BUFFER_POINTER as usize,
            first,
            CU_LAUNCH_PARAM_BUFFER_SIZE as usize,
            std::ptr::from_ref(&*size) as usize,
            CU_LAUNCH_PARAM_END as usize,
        ]);
        Arc::new(Params {
            bytes,
            packed,
            values,
            size,
            extra,
        })
    }

    /// `kernelParams` and `extra` as the program may read them: the one form that was set last.
    pub fn lists(&self) -> (*mut *mut c_void, *mut *mut c_void) {
        debug_assert_eq!(*self.size, self.bytes.len());
        let null = std::ptr::null_mut();
        if self.packed {
            (null, self.extra.as_ptr().cast_mut().cast())
        } else {
            (self.values.as_ptr().cast_mut().cast(), null)
        }
    }
}

/// Launch attributes by id.
#[derive(Clone, Default)]
pub struct Attributes(Vec<(CUlaunchAttributeID, Foreign<CUlaunchAttributeValue>)>);

impl Attributes {
    /// The value that was set, or zeros.
    pub fn get(&self, id: CUlaunchAttributeID) -> Result<CUlaunchAttributeValue> {
        known(id)?;
        let set = self.0.iter().find(|(other, _)| *other == id);
        Ok(set.map_or_else(CUlaunchAttributeValue::default, |(_, value)| value.0))
    }

    /// Sets a value. Those that need hardware we do not have are refused, as in cuLaunchKernelEx.
    pub fn set(
        &mut self,
        id: CUlaunchAttributeID,
        value: CUlaunchAttributeValue,
        geometry: &mut Geometry,
    ) -> Result {
        known(id)?;
        params::apply(id, &value, geometry)?;
        self.0.retain(|(other, _)| *other != id);
        if id != CU_LAUNCH_ATTRIBUTE_IGNORE {
            self.0.push((id, Foreign(value)));
        }
        Ok(())
    }

    /// Attributes as cuLaunchKernelEx passes them.
    pub fn read(list: &[CUlaunchAttribute], geometry: &mut Geometry) -> Result<Attributes> {
        let mut attributes = Attributes::default();
        for attribute in list {
            attributes.set(attribute.id, attribute.value, geometry)?;
        }
        Ok(attributes)
    }

    /// The priority that was set, or 0.
    pub fn priority(&self) -> i32 {
        // SAFETY: this attribute's value is this member, and any bits are an i32.
        self.get(CU_LAUNCH_ATTRIBUTE_PRIORITY)
            .map_or(0, |value| unsafe { value.priority })
    }

    /// The kernel may start before the one ahead of it in its stream has ended.
    pub fn is_programmatic(&self) -> bool {
        let id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        // SAFETY: this attribute's value is this member, and any bits are an i32.
        self.get(id)
            .is_ok_and(|value| unsafe { value.programmaticStreamSerializationAllowed } != 0)
    }

    /// The priority of the stream a kernel was captured from.
    pub fn set_priority(&mut self, priority: i32) {
        let id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
        if self.0.iter().all(|(other, _)| *other != id) {
            self.0.push((id, Foreign(CUlaunchAttributeValue { priority })));
        }
    }
}

fn known(id: CUlaunchAttributeID) -> Result {
    if id >= CU_LAUNCH_ATTRIBUTE_MAX {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

impl KernelWork {
    /// A launch with its parameters copied.
    ///
    /// # Safety
    /// The parameter lists describe the kernel's parameters, as CUDA requires.
    pub unsafe fn gather(
        function: Arc<Function>,
        func: u64,
        kern: u64,
        geometry: Geometry,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<KernelWork> {
        launch::check(&function, &geometry)?;
        if geometry.cooperative && !extra.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: promised by the caller.
        let bytes = unsafe { params::gather(function.kernel(), params, extra) }?;
        let params = Params::new(function.kernel(), bytes, !extra.is_null());
        Ok(KernelWork {
            function,
            func,
            kern,
            geometry,
            params,
            attributes: Attributes::default(),
        })
    }

    /// As cuGraphKernelNodeGetParams gives it.
    pub fn write(&self) -> CUDA_KERNEL_NODE_PARAMS {
        let (params, extra) = self.params.lists();
        let Geometry { grid, block, .. } = self.geometry;
        CUDA_KERNEL_NODE_PARAMS {
            func: self.func as CUfunction,
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: self.geometry.shared_bytes,
            kernelParams: params,
            extra,
            kern: self.kern as CUkernel,
            ctx: self.context().handle as CUcontext,
        }
    }

    /// Where it runs.
    pub fn context(&self) -> &Arc<Context> {
        &self.function.instance.context
    }

    /// The node with other parameters. Its attributes stay, and with them whether it is cooperative.
    pub fn with(&self, mut new: KernelWork) -> Result<KernelWork> {
        new.geometry.cooperative = self.geometry.cooperative;
        launch::check(&new.function, &new.geometry)?;
        new.attributes = self.attributes.clone();
        Ok(new)
    }

    /// A launch attribute.
    pub fn attribute(&self, id: CUlaunchAttributeID) -> Result<CUlaunchAttributeValue> {
        if id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
            let cooperative = i32::from(self.geometry.cooperative);
            return Ok(CUlaunchAttributeValue { cooperative });
        }
        self.attributes.get(id)
    }

    /// Sets a launch attribute.
    pub fn set_attribute(&mut self, id: CUlaunchAttributeID, value: CUlaunchAttributeValue) -> Result {
        let mut geometry = self.geometry;
        let mut attributes = self.attributes.clone();
        attributes.set(id, value, &mut geometry)?;
        launch::check(&self.function, &geometry)?;
        (self.geometry, self.attributes) = (geometry, attributes);
        Ok(())
    }

    /// Takes over another node's launch attributes. Both are of one context.
    pub fn copy_attributes(&mut self, from: &KernelWork) -> Result {
        if self.context().id != from.context().id {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let cooperative = from.geometry.cooperative;
        let geometry = Geometry {
            cooperative,
            ..self.geometry
        };
        launch::check(&self.function, &geometry)?;
        (self.geometry, self.attributes) = (geometry, from.attributes.clone());
        Ok(())
    }

    /// Runs it on the calling thread. `number` is that of the launch, where it is checked.
    pub fn run(&self, launcher: &Launcher, running: &Running<'_>, number: u32) -> u64 {
        launch::run(
            launcher,
            &self.function,
            &self.geometry,
            &self.params.bytes,
            running,
            number,
        )
    }
}
