//! Words and quantities: bytes, shares, devices, slices, selectors; no I/O.
#![forbid(unsafe_code)]
