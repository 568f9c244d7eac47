//! The limiter in front of any OpenCL driver, as a layer of the ICD loader (`OPENCL_LAYERS`).
//!
//! It has no accounting and no gate of its own: it shows OpenCL to the limiter as a CUDA driver (`driver`), and makes
//! the limiter's calls where a program makes OpenCL's. A memory object is physical memory there, a command queue is a
//! stream, a marker is an event, and the OpenCL devices of one process are its ordinals.
//!
//! - `layer`: how the loader puts the layer in front of a driver. `dispatch`, `below`: its table, and calls through it.
//! - `cl`: types and constants of OpenCL. `devices`: which account covers a device.
//! - `memory`: charges that end with their objects. `queues`, `marks`: what runs, and when it is over.
//! - `hooks`: the layer's own functions, one file for each area.
//!
//! All of this runs inside other programs, as the limiter does. A panic ends where it began. See docs/opencl.md for what
//! is charged, and docs/adr/0069.

mod below;
mod cl;
mod devices;
mod dispatch;
mod driver;
mod hooks;
mod layer;
mod marks;
mod memory;
mod queues;

pub use divvy_limiter::capture_environment;
pub use layer::{get_layer_info, init_layer};
