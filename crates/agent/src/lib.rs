//! The daemon of a host: admission, slices, pages, API.
#![forbid(unsafe_code)]
