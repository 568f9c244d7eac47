//! Requests that no driver grants.

use std::ptr::null_mut;

use divvy_abi::*;

use crate::emulated::code;
use crate::thing::Thing;
use crate::worker::Worker;
use crate::{LIMIT, PAGE};

impl Worker {
    /// Sizes that no driver grants, and pointers that it never handed out.
    pub fn nonsense(&mut self) {
        let mut pointer = 0;
        for bytes in [u64::MAX, u64::MAX - 511, 1 << 62, LIMIT + 1] {
            assert_eq!(
                code!(cuMemAlloc_v2(&raw mut pointer, bytes as usize)),
                CUDA_ERROR_OUT_OF_MEMORY
            );
            let result = code!(cuMemAllocAsync(&raw mut pointer, bytes as usize, null_mut()));
            assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY);
        }
        assert_eq!(
            code!(cuMemAlloc_v2(&raw mut pointer, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuMemAllocAsync(&raw mut pointer, 0, null_mut())),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(pointer, 0);
        for bogus in [0x1234, 0xdead_beef_0000, u64::MAX] {
            assert_ne!(code!(cuMemFree_v2(bogus)), CUDA_SUCCESS);
            assert_ne!(code!(cuMemFreeAsync(bogus, null_mut())), CUDA_SUCCESS);
            assert_ne!(code!(cuMemRelease(bogus)), CUDA_SUCCESS);
            assert_ne!(code!(cuMemUnmap(bogus & !0x1f_ffff, PAGE as usize)), CUDA_SUCCESS);
            assert_ne!(code!(cuArrayDestroy(bogus as CUarray)), CUDA_SUCCESS);
            assert_ne!(code!(cuIpcCloseMemHandle(bogus)), CUDA_SUCCESS);
        }
        if let Some(Thing::Pointer(pointer, _)) = self.things.first() {
            assert_ne!(
                code!(cuMemFree_v2(pointer + 256)),
                CUDA_SUCCESS,
                "not its beginning"
            );
        }
    }
}
