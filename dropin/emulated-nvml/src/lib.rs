//! The emulated device's NVML: a libnvidia-ml.so.1 that needs no GPU.

divvy_abi::export_nvml_table!(divvy_device::NVML_TABLE);
