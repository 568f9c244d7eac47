//! Images a program hands over as code, down to the PTX text inside.

pub mod fatbin;
