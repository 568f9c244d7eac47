//! The CUDA 12 runtime's library: a libcudart.so.12 over whichever driver the program has.

divvy_abi::export_runtime_table!(
    runtime12_functions,
    divvy_cudart::TABLE_12,
    "libcudart.so.12",
    through[divvy_trace::through]
);

/// The setting is read before the program runs.
#[used]
#[unsafe(link_section = ".init_array")]
static TRACE: extern "C" fn() = {
    extern "C" fn begin() {
        divvy_trace::begin("runtime");
    }
    begin
};
