//! The emulated device's library: a libcuda.so.1 that needs no GPU.

divvy_abi::export_table!(divvy_emulator::TABLE, through[divvy_trace::through]);

/// The setting is read before the program runs.
#[used]
#[unsafe(link_section = ".init_array")]
static TRACE: extern "C" fn() = {
    extern "C" fn begin() {
        divvy_trace::begin("driver");
    }
    begin
};
