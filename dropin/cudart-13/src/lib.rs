//! The CUDA 13 runtime's library: a libcudart.so.13 over whichever driver the program has.

divvy_abi::export_runtime_table!(
    runtime13_functions,
    divvy_cudart::TABLE_13,
    "libcudart.so.13",
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
