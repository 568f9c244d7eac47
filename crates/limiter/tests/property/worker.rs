//! A thread of a process: it takes a random action at each step, and has fixed duties at the end of a phase.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use divvy_abi::*;

use crate::emulated::{code, cu, get};
use crate::process::{LIVE, MANAGED};
use crate::random::Random;
use crate::thing::{Thing, paged};
use crate::{MIB, PAGE};

pub struct Worker {
    pub random: Random,
    pub streams: Vec<CUstream>,
    pub pool: CUmemoryPool,
    /// The handle by which other processes import the pool.
    pub name: OwnedFd,
    pub things: Vec<Thing>,
}

pub unsafe extern "C" fn doze(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(1));
}

impl Worker {
    pub fn new(seed: u64) -> Self {
        let mut properties = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let pool: CUmemoryPool = get!(cuMemPoolCreate(&raw const properties));
        let mut number = -1i32;
        let (out, kind) = (&raw mut number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        cu!(cuMemPoolExportToShareableHandle(out.cast(), pool, kind, 0));
        // SAFETY: the driver has just made it, for us to close.
        let name = unsafe { OwnedFd::from_raw_fd(number) };
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            streams: vec![
                get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)),
                null_mut(),
                get!(cuStreamCreate(0)),
            ],
            pool,
            name,
            things: Vec::new(),
        }
    }

    pub fn stream(&mut self) -> CUstream {
        let at = self.random.below(self.streams.len() as u64);
        self.streams[at as usize]
    }

    pub fn got(&mut self, result: CUresult, bytes: u64, thing: impl FnOnce() -> Thing) {
        match result {
            CUDA_SUCCESS => {
                LIVE.fetch_add(bytes, Ordering::Relaxed);
                let thing = thing();
                if let Thing::Managed(_, bytes) = thing {
                    MANAGED.fetch_add(paged(bytes), Ordering::Relaxed);
                }
                self.things.push(thing);
            }
            code => assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    pub fn step(&mut self) {
        let bytes = self.random.bytes();
        let stream = self.stream();
        let (mut pointer, size) = (0, bytes as usize);
        match self.random.below(31) {
            0 | 1 => {
                let result = code!(cuMemAlloc_v2(&raw mut pointer, size));
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
                if result == CUDA_SUCCESS && self.random.below(2) == 0 {
                    self.post_pointer(pointer);
                }
            }
            2 => {
                let (mut pitch, width) = (0, 1 + self.random.below(5000) as usize);
                let height = 1 + self.random.below(4000) as usize;
                let result = code!(cuMemAllocPitch_v2(
                    &raw mut pointer,
                    &raw mut pitch,
                    width,
                    height,
                    4
                ));
                let bytes = (pitch * height) as u64;
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
            }
            3 => {
                let result = code!(cuMemAllocManaged(&raw mut pointer, size, CU_MEM_ATTACH_GLOBAL.0));
                self.got(result, bytes, || Thing::Managed(pointer, bytes));
            }
            4 | 5 => {
                let result = match self.random.below(2) {
                    0 => code!(cuMemAllocAsync(&raw mut pointer, size, stream)),
                    _ => code!(cuMemAllocAsync_ptsz(&raw mut pointer, size, stream)),
                };
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
            }
            6 => {
                let result = code!(cuMemAllocFromPoolAsync(&raw mut pointer, size, self.pool, stream));
                self.got(result, bytes, || Thing::Pointer(pointer, bytes));
                if result == CUDA_SUCCESS && self.random.below(2) == 0 {
                    self.post_pooled(pointer);
                }
            }
            7 | 8 => self.block(bytes.next_multiple_of(PAGE)),
            9 => self.array(),
            10 => self.graph(stream),
            11 => self.capture(),
            12 => self.nonsense(),
            13 => match self.random.below(5) {
                0 => cu!(cuStreamSynchronize(stream)),
                1 => cu!(cuMemPoolTrimTo(self.pool, 0)),
                2 => cu!(cuDeviceGraphMemTrim(0)),
                _ => {
                    let mut keep = self.random.below(2) * 100 * MIB;
                    let which = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                    cu!(cuMemPoolSetAttribute(self.pool, which, (&raw mut keep).cast()));
                }
            },
            15 | 16 => self.foreign(),
            26 => self.code(),
            27 => self.passing_context(),
            14 => cu!(cuLaunchHostFunc(stream, Some(doze), null_mut())),
            _ => {
                let count = self.things.len() as u64;
                if count > 0 {
                    let at = self.random.below(count) as usize;
                    let thing = self.things.swap_remove(at);
                    self.free(thing, stream);
                }
            }
        }
    }

    /// All threads have stopped: this brings the device down to the memory really in use. Arrays end, since no call
    /// tells which of them share pages.
    pub fn settle(&mut self, all: bool) {
        let things = std::mem::take(&mut self.things);
        for thing in things {
            match thing {
                Thing::Array(..) | Thing::Mipmap(..) => self.free(thing, null_mut()),
                _ if !all => self.things.push(thing),
                other => self.free(other, null_mut()),
            }
        }
        cu!(cuCtxSynchronize());
        for stream in &self.streams {
            cu!(cuStreamSynchronize_ptsz(*stream));
        }
        // And memory that others give back later is not kept.
        let (mut keep, which) = (0_u64, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
        cu!(cuMemPoolSetAttribute(self.pool, which, (&raw mut keep).cast()));
        cu!(cuMemPoolTrimTo(self.pool, 0));
    }
}
