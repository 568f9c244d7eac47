//! An emulated device that really computes: memory, streams, modules, launches.
