//! The emulated device's library: a libcuda.so.1 that needs no GPU.

divvy_abi::export_table!(divvy_emulator::TABLE);
