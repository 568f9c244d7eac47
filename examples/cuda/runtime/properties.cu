// What the device is: properties and attributes agree.
#include "check.h"

int main() {
    int count = 0, device = -1, value, runtime, driver;
    OK(cudaGetDeviceCount(&count));
    HOLDS(count >= 1);
    OK(cudaGetDevice(&device));
    HOLDS(device == 0);
    cudaDeviceProp of;
    OK(cudaGetDeviceProperties(&of, 0));
    HOLDS(std::strlen(of.name) > 3 && of.warpSize == 32 && of.maxThreadsPerBlock >= 512);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    HOLDS(value == of.major && of.major >= 7);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    HOLDS(value == of.multiProcessorCount && value > 0);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    HOLDS(std::size_t(value) == of.sharedMemPerBlockOptin);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxGridDimX, 0));
    HOLDS(value == of.maxGridSize[0] && of.maxThreadsDim[2] == 64);
    HOLDS(of.managedMemory && of.unifiedAddressing && of.memoryPoolsSupported && of.cooperativeLaunch);
    std::size_t left, total;
    OK(cudaMemGetInfo(&left, &total));
    HOLDS(left <= total && total > 0 && total <= of.totalGlobalMem);
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    HOLDS(runtime / 1000 == CUDART_VERSION / 1000 && driver >= 12000);
    char bus[32];
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    OK(cudaDeviceGetByPCIBusId(&device, bus));
    HOLDS(device == 0);
    OK(cudaChooseDevice(&device, &of));
    HOLDS(device == 0);
    std::size_t stack;
    OK(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    HOLDS(stack == 4096);
    return 0;
}
