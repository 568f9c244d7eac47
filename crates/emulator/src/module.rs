//! Modules loaded into a context, and the functions found in them.

use crate::Result;
use crate::check;
use crate::context::Context;
use crate::copy;
use crate::handle::{self, Handles};
use crate::memory::allocation::{Allocation, Backing, Kind};
use divvy_abi::*;
use divvy_device::log;
use divvy_ptx::{Kernel, Module, Program};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// The modules of this process.
#[derive(Default)]
pub struct Modules {
    /// Live modules, those of libraries among them.
    pub loaded: Handles<Instance>,
    /// Functions handed out.
    pub functions: Handles<Function>,
}

impl Modules {
    /// Forgets what is loaded in a context that ends, by its id.
    pub fn forget_context(&self, id: u64) {
        self.functions
            .remove_all(|function| function.instance.context.id == id);
        self.loaded.remove_all(|instance| instance.context.id == id);
    }
}

/// A module in a context: its variables have addresses.
pub struct Instance {
    /// What the program holds, for a module; also set for a library's instance.
    pub handle: u64,
    /// The context it is loaded in.
    pub context: Arc<Context>,
    /// Its code.
    pub program: Program,
    /// It is a library's, and goes with the library.
    pub of_library: bool,
    globals: HashMap<String, (u64, u64)>,
    functions: Mutex<HashMap<String, u64>>,
}

/// A kernel in a context, ready to launch.
pub struct Function {
    /// What the program holds.
    pub handle: u64,
    /// The module it is in.
    pub instance: Arc<Instance>,
    /// Its place among the module's kernels.
    index: usize,
    /// Its name with a NUL, for cuFuncGetName.
    pub c_name: CString,
    /// What cuFuncSetAttribute changed.
    pub settings: Settings,
}

/// Attributes a program may set, by CUfunction_attribute number.
#[derive(Default)]
pub struct Settings(Mutex<HashMap<u32, i32>>);

impl Settings {
    /// The value set, if one was.
    pub fn get(&self, attribute: u32) -> Option<i32> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&attribute)
            .copied()
    }

    /// Sets a value.
    pub fn set(&self, attribute: u32, value: i32) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(attribute, value);
    }

    /// Takes over all values set in another.
    pub fn copy_from(&self, other: &Settings) {
        let other = other.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(other);
    }
}

impl Instance {
    /// Gives every variable of the module an address in the context, with its initial value.
    pub fn load(module: &Arc<Module>, context: &Arc<Context>, of_library: bool) -> Result<Arc<Instance>> {
        let defined = |name: &str| {
            module
                .globals()
                .iter()
                .any(|other| other.name == name && !other.external)
        };
        if let Some(missing) = module
            .globals()
            .iter()
            .find(|global| global.external && !defined(&global.name))
        {
            log::line(format_args!(
                "the module refers to the variable {}, which nothing defines",
                missing.name
            ));
            return Err(CUDA_ERROR_INVALID_PTX);
        }
        let mut globals: HashMap<String, (u64, u64)> = HashMap::new();
        let mut placed = Vec::new();
        for global in module.globals().iter().filter(|global| !global.external) {
            let extent = context
                .device
                .heap
                .take(global.size.saturating_add(check::margin()))
                .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
            let address = extent.address();
            let backing = Backing::Device(Arc::new(extent));
            let device = context.device.ordinal;
            placed.push(Allocation::new(
                address,
                global.size.max(1),
                Kind::Global,
                context.handle,
                device,
                backing,
            ));
            globals.insert(global.name.clone(), (address, global.size));
        }
        let program = module
            .link(&mut |global| globals.get(&global.name).map_or(0, |&(address, _)| address))
            .map_err(|why| {
                log::line(format_args!("cannot link the module: {why}"));
                CUDA_ERROR_INVALID_PTX
            })?;
        for (global, allocation) in module
            .globals()
            .iter()
            .filter(|global| !global.external)
            .zip(&placed)
        {
            match program.initial_bytes(global) {
                Some(bytes) => copy::initialise(allocation, &bytes),
                // Pages of its own are zeros, and take no memory until a kernel writes to them. A part of a shared page,
                // which is small, has the bytes of what lay there before.
                None if allocation.extent().is_some_and(|extent| extent.starts_as_zeros()) => {}
                None => copy::initialise(allocation, &vec![0; global.size as usize]),
            }
        }
        for allocation in placed {
            context
                .addresses
                .live
                .insert(Arc::new(allocation))
                .map_err(|_| CUDA_ERROR_UNKNOWN)?;
        }
        if let Some(checker) = check::on() {
            for (name, (address, _)) in &globals {
                checker.name(*address, format!("the variable `{name}`"));
            }
        }
        Ok(Arc::new(Instance {
            handle: handle::fresh(),
            context: Arc::clone(context),
            program,
            of_library,
            globals,
            functions: Mutex::default(),
        }))
    }

    /// Address and size of a variable.
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.globals.get(name).copied()
    }

    /// The function of this name; the same handle every time.
    pub fn function(self: &Arc<Instance>, name: &str, modules: &Modules) -> Result<Arc<Function>> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions
            .get(name)
            .and_then(|&handle| modules.functions.get(handle))
        {
            return Ok(function);
        }
        let kernels = self.program.module().kernels();
        let index = kernels
            .iter()
            .position(|kernel| kernel.name == name)
            .ok_or(CUDA_ERROR_NOT_FOUND)?;
        let function = Arc::new(Function {
            handle: handle::fresh(),
            instance: Arc::clone(self),
            index,
            c_name: CString::new(name).map_err(|_| CUDA_ERROR_NOT_FOUND)?,
            settings: Settings::default(),
        });
        modules.functions.insert(function.handle, Arc::clone(&function));
        functions.insert(name.to_owned(), function.handle);
        Ok(function)
    }

    /// Forgets the module's functions and variables, once the work that uses them is done.
    pub fn unload(&self, modules: &Modules) {
        self.context.drain();
        modules
            .functions
            .remove_all(|function| function.instance.handle == self.handle);
        for &(address, _) in self.globals.values() {
            let addresses = &self.context.addresses;
            addresses
                .live
                .remove(address, |allocation| allocation.kind == Kind::Global);
        }
    }
}

impl Function {
    /// The kernel itself.
    pub fn kernel(&self) -> &Kernel {
        &self.instance.program.module().kernels()[self.index]
    }
}
