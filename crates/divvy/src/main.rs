//! The command `divvy`: grammar and output, nothing else.
#![forbid(unsafe_code)]

fn main() {}
