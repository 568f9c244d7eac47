//! Devices that reach each other's memory.

use crate::context::{device, primary};
use crate::prelude::*;

entry! {
    cudaDeviceCanAccessPeer(canAccessPeer: *mut i32, of: i32, peerDevice: i32) {
        refuse(canAccessPeer.is_null(), cudaErrorInvalidValue)?;
        let (from, to) = (device(of)?, device(peerDevice)?);
        cu!(cuDeviceCanAccessPeer(canAccessPeer, from, to));
        Ok(())
    }

    cudaDeviceEnablePeerAccess(peerDevice: i32, flags: u32) {
        context()?;
        let peer = primary(peerDevice)?;
        cu!(cuCtxEnablePeerAccess(peer, flags));
        Ok(())
    }

    cudaDeviceDisablePeerAccess(peerDevice: i32) {
        context()?;
        let peer = primary(peerDevice)?;
        cu!(cuCtxDisablePeerAccess(peer));
        Ok(())
    }

    cudaDeviceGetP2PAttribute(value: *mut i32, attr: cudaDeviceP2PAttr, srcDevice: i32, dstDevice: i32) {
        let (from, to) = (device(srcDevice)?, device(dstDevice)?);
        cu!(cuDeviceGetP2PAttribute(value, CUdevice_P2PAttribute(attr.0), from, to));
        Ok(())
    }
}
