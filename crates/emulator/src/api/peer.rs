//! Access between devices: every emulated device can reach every other, since all live in one host's memory.

use super::args::{Handle, Out};
use super::current;
use crate::driver::driver;
use divvy_abi::*;
use std::sync::PoisonError;

entry! {
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: CUdevice, peer: CUdevice) {
        let driver = driver()?;
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        can.set(i32::from(device.ordinal != peer.ordinal))
    }

    fn cuDeviceGetP2PAttribute(
        value: Out<i32>,
        attribute: CUdevice_P2PAttribute,
        source: CUdevice,
        target: CUdevice,
    ) {
        let driver = driver()?;
        if driver.device(source)?.ordinal == driver.device(target)?.ordinal {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        value.set(match attribute {
            CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED | CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => 1,
            CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK | CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 0,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    }

    fn cuCtxEnablePeerAccess(peer: Handle<CUcontext>, flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = current::usable()?;
        let peer = driver()?.contexts.get(peer.0).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if peer.device.ordinal == context.device.ordinal {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let mut peers = context.peers.write().unwrap_or_else(PoisonError::into_inner);
        if peers.insert(peer.handle) { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: Handle<CUcontext>) {
        let context = current::usable()?;
        driver()?.contexts.get(peer.0).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        let mut peers = context.peers.write().unwrap_or_else(PoisonError::into_inner);
        if peers.remove(&peer.0) { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) }
    }
}
