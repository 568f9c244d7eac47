//! Events of one process in another: cuIpcGetEventHandle and cuIpcOpenEventHandle.

use super::args::{Handle, Out};
use super::current;
use crate::context::Context;
use crate::driver::driver;
use crate::event::Event;
use crate::{Result, handle};
use divvy_abi::*;
use divvy_device::log;
use divvy_device::shared::event::SharedEvent;
use divvy_device::shared::key::{BYTES, Key, Lock};
use rustix::io::Errno;
use std::sync::Arc;

entry! {
    fn cuIpcGetEventHandle(handle: Out<CUipcEventHandle>, event: Handle<CUevent>) {
        handle.required()?;
        let event = driver()?.event(event.0)?;
        let shared = event.shared.as_ref().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let key = Key {
            lock: Lock::Event,
            scope: event.context.device.facts.uuid.0,
            id: shared.id,
            allocation: 0,
            offset: 0,
            bytes: 0,
        };
        handle.set(CUipcEventHandle { reserved: key.to_bytes().map(|byte| byte as c_char) })
    }

    fn cuIpcOpenEventHandle(event: Out<CUevent>, key: CUipcEventHandle) {
        event.required()?;
        let context = current::usable()?;
        let bytes: [u8; BYTES] = key.reserved.map(|byte| byte as u8);
        let key = Key::read(&bytes, Lock::Event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let driver = driver()?;
        let device = driver.devices.iter().find(|device| device.facts.uuid.0 == key.scope);
        let device = device.ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        let shared = SharedEvent::open(&device.hardware.events, key.id).map_err(refused)?;
        let shared = shared.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let flags = CU_EVENT_INTERPROCESS.0 | CU_EVENT_DISABLE_TIMING.0;
        let made = Event::interprocess(handle::fresh(), context, flags, shared);
        driver.events.insert(made.handle, Arc::clone(&made));
        event.set(made.handle as CUevent)
    }
}

/// What other processes see of a new event of a context.
pub fn create(context: &Context) -> Result<Arc<SharedEvent>> {
    SharedEvent::create(&context.device.hardware.events).map_err(refused)
}

fn refused(why: Errno) -> CUresult {
    log::line(format_args!("event between processes: {why}"));
    CUDA_ERROR_OPERATING_SYSTEM
}
