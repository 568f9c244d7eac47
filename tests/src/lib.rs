//! End to end, by user story, on real parts.
#![forbid(unsafe_code)]
