// How many blocks fit, and what a kernel needs.
#include "check.h"

template <class T>
__global__ void work(T *x) {
    __shared__ T part[256];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = part[255 - threadIdx.x];
}

int main() {
    cudaFuncAttributes of;
    OK(cudaFuncGetAttributes(&of, work<double>));
    HOLDS(of.sharedSizeBytes == 2048 && of.maxThreadsPerBlock >= 256 && of.numRegs > 0 && of.ptxVersion >= 70);
    int blocks, size, least;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work<double>, 256, 0));
    HOLDS(blocks >= 1);
    OK(cudaOccupancyMaxPotentialBlockSize(&least, &size, work<float>, 0, 256));
    HOLDS(size > 0 && size <= 256 && least >= 1);
    std::size_t dynamic;
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&dynamic, work<float>, 1, 256));
    HOLDS(dynamic > 0);
    OK(cudaFuncSetAttribute(work<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    OK(cudaFuncGetAttributes(&of, work<float>));
    HOLDS(of.maxDynamicSharedSizeBytes == 60000);
    OK(cudaFuncSetCacheConfig(work<float>, cudaFuncCachePreferShared));
    std::vector<double> in(256);
    std::iota(in.begin(), in.end(), 0);
    Buffer<double> x(in);
    work<<<1, 256>>>(x.at);
    std::reverse(in.begin(), in.end());
    HOLDS(x.read() == in);
    return 0;
}
