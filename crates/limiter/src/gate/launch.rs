//! A launch, as the gate sees it.

use divvy_abi::{
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchConfig,
};

use super::estimates::Key;
use super::graphs;
use super::stream::Stream;

/// A launch's contents and its stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub key: Key,
    pub stream: Stream,
    /// The launch's attributes, if it has any.
    config: *const CUlaunchConfig,
}

impl Launch {
    #[inline]
    pub fn kernel(function: CUfunction, grid: [u32; 3], block: [u32; 3], stream: Stream) -> Self {
        Self {
            key: Key::kernel(function as usize, grid, block),
            stream,
            config: core::ptr::null(),
        }
    }

    /// A launch by its configuration.
    ///
    /// # Safety
    /// The configuration is the program's, valid for this call.
    #[inline]
    pub unsafe fn configured(
        function: CUfunction,
        config: *const CUlaunchConfig,
        per_thread: bool,
    ) -> Option<Self> {
        // SAFETY: the caller's promise.
        let found = unsafe { config.as_ref() }?;
        let launch = Self::kernel(
            function,
            [found.gridDimX, found.gridDimY, found.gridDimZ],
            [found.blockDimX, found.blockDimY, found.blockDimZ],
            Stream {
                handle: found.hStream,
                per_thread,
            },
        );
        Some(Self { config, ..launch })
    }

    /// One of several launches that go together.
    pub fn one_of(parameters: &CUDA_LAUNCH_PARAMS) -> Self {
        Self::kernel(
            parameters.function,
            [parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ],
            [parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ],
            Stream {
                handle: parameters.hStream,
                per_thread: false,
            },
        )
    }

    pub fn graph(exec: usize, stream: Stream) -> Self {
        Self {
            key: graphs::key_of(exec),
            stream,
            config: core::ptr::null(),
        }
    }

    /// Whether it may begin before the kernel ahead of it has ended: then no event of ours comes between them.
    pub(super) fn is_programmatic(&self) -> bool {
        // SAFETY: null or the program's own configuration, which the driver is about to read as well.
        let Some(config) = (unsafe { self.config.as_ref() }) else {
            return false;
        };
        if config.attrs.is_null() {
            return false;
        }
        (0..config.numAttrs as usize).any(|n| {
            // SAFETY: the program says that there are so many; each value is plain bytes.
            unsafe {
                let attribute = &*config.attrs.add(n);
                attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                    && attribute.value.programmaticStreamSerializationAllowed != 0
            }
        })
    }
}
