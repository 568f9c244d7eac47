//! Graph memory of a device, and user objects that graphs keep.

use super::args::{Callback, Handle, Out};
use super::find;
use crate::driver::driver;
use crate::graph::object::{Destructor, ObjectReference, UserObject};
use divvy_abi::*;

entry! {
    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>) {
        let driver = driver()?;
        let figures = driver.graphs.memory.physical(driver.device(device)?).figures();
        value.required()?;
        match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => value.set_as(figures.used),
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => value.set_as(figures.used_high),
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => value.set_as(figures.reserved),
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => value.set_as(figures.reserved_high),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    // Only the high-water marks can be set, and only reset.
    fn cuDeviceSetGraphMemAttribute(device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>) {
        let driver = driver()?;
        let physical = driver.graphs.memory.physical(driver.device(device)?);
        let high = matches!(attribute, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH | CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
        if !high || value.before_as::<u64>()? != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        physical.reset_high(attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
        Ok(())
    }

    fn cuDeviceGraphMemTrim(device: CUdevice) {
        let driver = driver()?;
        driver.graphs.memory.trim(driver.device(device)?);
        Ok(())
    }

    fn cuUserObjectCreate(
        object: Out<CUuserObject>,
        data: Handle<*mut c_void>,
        destructor: Callback<Destructor>,
        references: u32,
        flags: u32,
    ) {
        object.required()?;
        let destructor = destructor.0.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // CUDA requires this flag: no caller can wait for the destructor.
        if references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let made = UserObject::create(&driver()?.graphs.objects, data.0, destructor, references);
        object.set(made.handle as CUuserObject)
    }

    fn cuUserObjectRetain(object: Handle<CUuserObject>, count: u32) {
        counted(count)?;
        find::user_object(object.0)?.retain(u64::from(count));
        Ok(())
    }

    fn cuUserObjectRelease(object: Handle<CUuserObject>, count: u32) {
        counted(count)?;
        find::user_object(object.0)?.release(u64::from(count))
    }

    fn cuGraphRetainUserObject(graph: Handle<CUgraph>, object: Handle<CUuserObject>, count: u32, flags: u32) {
        counted(count)?;
        let (graph, object) = (find::graph(graph.0)?, find::user_object(object.0)?);
        if flags & !CU_GRAPH_USER_OBJECT_MOVE.0 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let reference = ObjectReference::new(&object, u64::from(count), flags != 0);
        graph.lock().objects.push(reference);
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: Handle<CUgraph>, object: Handle<CUuserObject>, count: u32) {
        counted(count)?;
        ObjectReference::release(&mut find::graph(graph.0)?.lock().objects, object.0, u64::from(count))
    }
}

fn counted(count: u32) -> crate::Result {
    if count == 0 || count > i32::MAX as u32 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}
