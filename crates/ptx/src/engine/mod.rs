//! The engine: runs a kernel's blocks over worker threads.

pub(crate) mod alu_float;
pub(crate) mod alu_int;
pub(crate) mod async_copy;
pub(crate) mod atomics;
mod block;
pub(crate) mod compare;
pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod ctx;
pub(crate) mod fragment;
pub(crate) mod functions;
pub(crate) mod grid;
pub(crate) mod half;
pub(crate) mod heap;
mod image;
pub(crate) mod launch;
pub(crate) mod map;
#[cfg(target_arch = "x86_64")]
mod march;
pub(crate) mod matrix;
pub(crate) mod matrix_memory;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod moves;
mod pool;
mod prepare;
pub(crate) mod print;
mod request;
pub(crate) mod select;
pub(crate) mod shuffle;
pub(crate) mod small_float;
mod survey;
pub(crate) mod texture;
pub(crate) mod timing;
mod warp;
pub(crate) mod watch;

pub use image::{Addressing, Channel, Image, Texture};
pub use request::{AddressSpace, Launch, Stats};
pub use timing::{Progress, Times, Timing};
pub use watch::{Order, Touch, WarpAt, Watch, Window};

use crate::error::Fault;
use crate::module::Program;
use pool::Pool;

/// Runs blocks over worker threads, which start at the first run and end when the engine is dropped.
pub struct Engine {
    pool: Pool,
}

impl Engine {
    /// An engine of `workers` threads, at least one. Starts none yet.
    pub fn new(workers: usize) -> Engine {
        Engine {
            pool: Pool::new(workers.clamp(1, 1024)),
        }
    }

    /// Runs a kernel to its end. Several threads may run kernels at once: they share the workers.
    ///
    /// # Errors
    /// The first fault any block met; the others are stopped.
    pub fn run(&self, program: &Program, launch: &Launch<'_>) -> Result<Stats, Fault> {
        let state = prepare::prepare(program, launch, None)?;
        self.pool.run(state)
    }

    /// As [`Engine::run`], interpreted, of a module of [`crate::Module::parse_watched`]: `watch` is told what the kernel
    /// does.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_watched(
        &self,
        program: &Program,
        launch: &Launch<'_>,
        watch: &dyn Watch,
    ) -> Result<Stats, Fault> {
        let state = prepare::prepare(program, launch, Some(watch))?;
        self.pool.run(state)
    }
}
