//! Whole agents in this process, over simulated devices.

mod accounts;
mod devices;
mod silence;
mod times;
