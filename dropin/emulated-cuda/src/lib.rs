//! The emulated device's face: a libcuda.so.1 that needs no GPU.
