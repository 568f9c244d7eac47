// Memory of the host that kernels reach: allocated, and registered.
#include "check.h"

__global__ void square(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * in[i];
}

int main() {
    const int n = 3000;
    int *mapped, *on_device, *registered_on_device;
    OK(cudaHostAlloc(&mapped, n * sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
    OK(cudaHostGetDevicePointer(&on_device, mapped, 0));
    std::vector<int> own(n);
    OK(cudaHostRegister(own.data(), n * sizeof(int), cudaHostRegisterMapped));
    OK(cudaHostGetDevicePointer(&registered_on_device, own.data(), 0));
    for (int i = 0; i < n; i++) mapped[i] = i;
    square<<<(n + 127) / 128, 128>>>(on_device, registered_on_device, n);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++) HOLDS(own[i] == i * i);
    unsigned flags;
    OK(cudaHostGetFlags(&flags, mapped));
    HOLDS(flags & cudaHostAllocMapped);
    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, mapped));
    HOLDS(of.type == cudaMemoryTypeHost && of.hostPointer == mapped);
    int local;
    OK(cudaPointerGetAttributes(&of, &local));
    HOLDS(of.type == cudaMemoryTypeUnregistered);
    Buffer<int> memory(10);
    OK(cudaPointerGetAttributes(&of, memory.at + 3));
    HOLDS(of.type == cudaMemoryTypeDevice && of.device == 0 && of.devicePointer == memory.at + 3);
    ANSWERS(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(own.data(), n * sizeof(int), 0));
    OK(cudaHostUnregister(own.data()));
    ANSWERS(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(own.data()));
    OK(cudaFreeHost(mapped));
    cudaGetLastError();
    return 0;
}
