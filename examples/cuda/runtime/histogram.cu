// A histogram with atomics in shared memory, then in global memory.
#include "check.h"

__global__ void count(const int *in, int n, int *bins) {
    __shared__ int own[64];
    if (threadIdx.x < 64) own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[in[i]], 1);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

int main() {
    std::vector<int> in = Numbers{}.ints(30000, 64), expected(64);
    for (int x : in) expected[x]++;
    Buffer<int> x(in), bins(64);
    OK(cudaMemset(bins.at, 0, 64 * sizeof(int)));
    count<<<5, 128>>>(x.at, in.size(), bins.at);
    HOLDS(bins.read() == expected);
    return 0;
}
