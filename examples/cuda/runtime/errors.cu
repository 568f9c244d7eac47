// What is refused, by which code, and how long an error is remembered.
#include "check.h"

__global__ void nothing() {}
__global__ void large() {
    __shared__ int x[1000];
    x[threadIdx.x] = 1;
}

int main() {
    HOLDS(cudaGetLastError() == cudaSuccess);
    nothing<<<1, 2000>>>();
    HOLDS(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
    HOLDS(cudaGetLastError() == cudaErrorInvalidConfiguration);
    HOLDS(cudaGetLastError() == cudaSuccess);
    nothing<<<0, 1>>>();
    HOLDS(cudaGetLastError() == cudaErrorInvalidConfiguration);
    nothing<<<1, dim3(1, 1, 100)>>>();
    HOLDS(cudaGetLastError() == cudaErrorInvalidConfiguration);
    large<<<1, 1, 100 << 20>>>();
    HOLDS(cudaGetLastError() == cudaErrorInvalidValue);
    nothing<<<1, 1>>>();
    HOLDS(cudaGetLastError() == cudaSuccess);

    void *memory = nullptr;
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&memory, std::size_t(1) << 50));
    HOLDS(memory == nullptr && cudaGetLastError() == cudaErrorMemoryAllocation);
    ANSWERS(cudaErrorInvalidValue, cudaMalloc(nullptr, 4));
    ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(1000));
    ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(-1));
    int local = 0;
    ANSWERS(cudaErrorInvalidValue, cudaFree(&local));
    ANSWERS(cudaErrorInvalidMemcpyDirection, cudaMemcpy(&local, &local, 4, (cudaMemcpyKind)77));
    ANSWERS(cudaErrorInvalidResourceHandle, cudaStreamDestroy(nullptr));
    ANSWERS(cudaErrorInvalidResourceHandle, cudaEventRecord(nullptr));
    ANSWERS(cudaErrorInvalidDeviceFunction, cudaLaunchKernel((void *)&local, dim3(1), dim3(1), nullptr, 0, nullptr));
    cudaFuncAttributes attributes;
    ANSWERS(cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes(&attributes, (void *)&local));
    HOLDS(cudaGetLastError() == cudaErrorInvalidDeviceFunction);
    OK(cudaFree(nullptr));
    OK(cudaMalloc(&memory, 0));
    OK(cudaFreeHost(nullptr));
    OK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
    HOLDS(std::string(cudaGetErrorName(cudaErrorNotReady)) == "cudaErrorNotReady");
    HOLDS(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
    HOLDS(std::string(cudaGetErrorString((cudaError_t)12345)) == "unrecognized error code");
    // An error is the thread's own.
    cudaSetDevice(1000);
    cudaError_t elsewhere = cudaErrorUnknown;
    std::thread([&] { elsewhere = cudaGetLastError(); }).join();
    HOLDS(elsewhere == cudaSuccess && cudaGetLastError() == cudaErrorInvalidDevice);
    return 0;
}
