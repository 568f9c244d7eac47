//! Libraries: code that belongs to no context and is loaded into each when first used there.

use crate::Result;
use crate::context::Context;
use crate::handle;
use crate::image::{Image, ImageError};
use crate::module::{Function, Instance, Modules, Settings};
use divvy_abi::*;
use divvy_device::log;
use divvy_ptx::Module;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A library.
pub struct Library {
    /// What the program holds.
    pub handle: u64,
    image: Image,
    kernels: HashMap<String, Arc<Kernel>>,
    /// Its modules, by context id.
    instances: Mutex<HashMap<u64, Arc<Instance>>>,
}

/// A kernel of a library, in whatever context it is launched.
pub struct Kernel {
    /// What the program holds.
    pub handle: u64,
    /// The library it is in.
    pub library: Weak<Library>,
    /// Its name with a NUL, for cuKernelGetName.
    pub c_name: CString,
    /// What cuKernelSetAttribute changed, by device ordinal.
    settings: Mutex<HashMap<usize, Arc<Settings>>>,
}

impl Library {
    /// A library of an image's code. `sm` is the compute capability its kernels are listed for.
    pub fn new(image: Image, sm: u32) -> std::result::Result<Arc<Library>, ImageError> {
        let module = image.module(sm)?;
        let handle = handle::fresh();
        Ok(Arc::new_cyclic(|library| {
            let kernel = |name: &str| {
                let kernel = Kernel {
                    handle: handle::fresh(),
                    library: Weak::clone(library),
                    c_name: CString::new(name).unwrap_or_default(),
                    settings: Mutex::default(),
                };
                (name.to_owned(), Arc::new(kernel))
            };
            let kernels = module
                .kernels()
                .iter()
                .map(|listed| kernel(&listed.name))
                .collect();
            Library {
                handle,
                image,
                kernels,
                instances: Mutex::default(),
            }
        }))
    }

    /// Its kernels, in no particular order.
    pub fn kernels(&self) -> impl ExactSizeIterator<Item = &Arc<Kernel>> {
        self.kernels.values()
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Result<&Arc<Kernel>> {
        self.kernels.get(name).ok_or(CUDA_ERROR_NOT_FOUND)
    }

    /// Its module in a context, loaded now if it is not yet.
    pub fn instance(&self, context: &Arc<Context>, modules: &Modules) -> Result<Arc<Instance>> {
        let mut instances = self.lock();
        if let Some(instance) = instances.get(&context.id) {
            return Ok(Arc::clone(instance));
        }
        let module = self
            .image
            .module(context.device.facts.profile.sm())
            .map_err(|why| {
                log::line(format_args!("cannot load a library into a context: {why}"));
                why.code()
            })?;
        let instance = Instance::load(&module, context, true)?;
        modules.loaded.insert(instance.handle, Arc::clone(&instance));
        instances.insert(context.id, Arc::clone(&instance));
        Ok(instance)
    }

    /// Drops its module in a context that is ending.
    pub fn forget_context(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// Unloads it from every context.
    pub fn unload(&self, modules: &Modules) {
        for (_, instance) in self.lock().drain() {
            modules.loaded.remove(instance.handle);
            instance.unload(modules);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Instance>>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel {
    /// Its function in a context.
    pub fn function(&self, context: &Arc<Context>, modules: &Modules) -> Result<Arc<Function>> {
        let library = self.library.upgrade().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let name = self.c_name.to_str().map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
        let function = library.instance(context, modules)?.function(name, modules)?;
        function
            .settings
            .copy_from(&self.settings(context.device.ordinal));
        Ok(function)
    }

    /// What cuKernelSetAttribute set for a device.
    pub fn settings(&self, device: usize) -> Arc<Settings> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(settings.entry(device).or_default())
    }

    /// The module it is in, for a device of compute capability `sm`, context or not.
    pub fn module(&self, sm: u32) -> Result<Arc<Module>> {
        let library = self.library.upgrade().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        library.image.module(sm).map_err(|why| why.code())
    }

    /// Describes the kernel for a device of compute capability `sm`.
    pub fn describe<T>(&self, sm: u32, look: impl FnOnce(&divvy_ptx::Kernel) -> T) -> Result<T> {
        let name = self.c_name.to_str().map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
        self.module(sm)?
            .kernel(name)
            .map(look)
            .ok_or(CUDA_ERROR_NOT_FOUND)
    }
}
