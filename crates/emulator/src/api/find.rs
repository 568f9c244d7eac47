//! The objects that handles name.

use super::current;
use crate::Result;
use crate::driver::driver;
use crate::function::Target;
use crate::graph::exec::Exec;
use crate::graph::object::UserObject;
use crate::graph::topology::Graph;
use std::sync::Arc;

/// The graph of a handle.
pub fn graph(handle: u64) -> Result<Arc<Graph>> {
    driver()?.graphs.handles.find(handle)
}

/// The graph that holds a node.
pub fn graph_of(node: u64) -> Result<Arc<Graph>> {
    driver()?.graphs.handles.of_node(node)
}

/// The executable graph of a handle.
pub fn exec(handle: u64) -> Result<Arc<Exec>> {
    driver()?.graphs.exec(handle)
}

/// The user object of a handle.
pub fn user_object(handle: u64) -> Result<Arc<UserObject>> {
    driver()?.graphs.object(handle)
}

/// What a CUfunction or CUkernel names.
pub fn target(handle: u64) -> Result<Target> {
    let driver = driver()?;
    Target::find(&driver.modules, &driver.kernels, handle)
}

/// Looks at a kernel's code, as the current device, else the first, runs it.
pub fn describe<T>(target: &Target, look: impl FnOnce(&divvy_ptx::Kernel) -> T) -> Result<T> {
    let driver = driver()?;
    match current::context() {
        Ok(context) => target.describe_on(&context.device, look),
        Err(_) => target.describe_on(&driver.devices[0], look),
    }
}
