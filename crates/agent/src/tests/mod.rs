//! Whole agents in this process, over simulated devices.

mod devices;
mod silence;
mod times;
