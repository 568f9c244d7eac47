//! The driver of an emulated device, which really computes: contexts, memory, streams, modules, graphs, launches.
//!
//! [`TABLE`] is the driver: a libcuda.so.1 that needs no GPU. The device below it, and its libnvidia-ml.so.1, are
//! `divvy-device`.

mod api;
mod array;
mod block;
mod check;
mod context;
mod copy;
mod device_heap;
mod driver;
mod event;
mod external;
mod fork;
mod function;
mod graph;
mod handle;
mod image;
mod jit;
mod kernel_time;
mod launch;
mod library;
mod link;
mod memop;
mod memory;
mod module;
mod occupancy;
mod order;
mod params;
mod pool;
mod print;
mod profile;
mod stream;
mod texture;
mod trace;
mod visible;

pub use api::TABLE;

/// What the fuzz targets under `fuzz/` call; not for use.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads bytes as a fatbin container, as a load does, and asks for its text for every device there may be. Returns
    /// the bytes of text after the load, after the first device and in the end.
    pub fn fatbin(bytes: &[u8]) -> [u64; 3] {
        let Ok(image) = crate::image::Image::from_fatbin(bytes) else {
            return [0; 3];
        };
        let loaded = image.spent();
        let _one = image.text(u32::MAX).is_ok();
        let first = image.spent();
        for sm in 0..=130 {
            let _other = image.text(sm).is_ok();
        }
        [loaded, first, image.spent()]
    }

    /// The most text that one load may come to, in bytes.
    pub const FATBIN_MOST: u64 = crate::image::fatbin::MAX_TOGETHER;
}

/// What a call comes to: a driver error is a CUresult.
type Result<T = ()> = std::result::Result<T, divvy_abi::CUresult>;
