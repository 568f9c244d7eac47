//! The CUDA driver ABI: types, and one declaration table of every entry point.
