//! Whole agents in this process, over devices that are played.

mod devices;
mod silence;
