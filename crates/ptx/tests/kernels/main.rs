//! Whole kernels, as NVIDIA's compiler wrote them, against the same computation on the host.
//!
//! Every `.ptx` here is NVRTC's output for the `.cu` of its name; `compile.py` makes them again.

#[path = "../support/mod.rs"]
mod support;

mod dense;
mod irregular;
mod language;
mod matrix;
mod numbers;
mod random;
mod reductions;
mod wmma;
