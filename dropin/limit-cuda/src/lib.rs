//! The limiter's face: a libcuda.so.1 that stands in front of another one.
