// Memory in the order of a stream, from the device's pool and from one of our own.
#include "check.h"

__global__ void fill(int *x, int n, int with) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = with;
}

int main() {
    const int n = 10000;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaMemPool_t own, usual;
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = 0;
    OK(cudaMemPoolCreate(&own, &properties));
    OK(cudaDeviceGetDefaultMemPool(&usual, 0));
    std::uint64_t keep = UINT64_MAX;
    OK(cudaMemPoolSetAttribute(usual, cudaMemPoolAttrReleaseThreshold, &keep));
    for (int round = 0; round < 5; round++) {
        int *x, *y;
        OK(cudaMallocAsync(&x, n * sizeof(int), stream));
        OK(cudaMallocFromPoolAsync(&y, n * sizeof(int), own, stream));
        fill<<<(n + 255) / 256, 256, 0, stream>>>(x, n, round);
        fill<<<(n + 255) / 256, 256, 0, stream>>>(y, n, -round);
        std::vector<int> a(n), b(n);
        OK(cudaMemcpyAsync(a.data(), x, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
        OK(cudaMemcpyAsync(b.data(), y, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
        OK(cudaFreeAsync(x, stream));
        OK(cudaFreeAsync(y, stream));
        OK(cudaStreamSynchronize(stream));
        HOLDS(a == std::vector<int>(n, round) && b == std::vector<int>(n, -round));
    }
    std::uint64_t reserved = 0, used = 1;
    OK(cudaMemPoolGetAttribute(usual, cudaMemPoolAttrReservedMemCurrent, &reserved));
    OK(cudaMemPoolGetAttribute(usual, cudaMemPoolAttrUsedMemCurrent, &used));
    HOLDS(reserved >= n * sizeof(int) && used == 0);
    OK(cudaMemPoolTrimTo(usual, 0));
    OK(cudaMemPoolGetAttribute(usual, cudaMemPoolAttrReservedMemCurrent, &reserved));
    HOLDS(reserved == 0);
    OK(cudaMemPoolDestroy(own));
    OK(cudaStreamDestroy(stream));
    return 0;
}
