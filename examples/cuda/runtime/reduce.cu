// A sum: within warps by shuffles, within blocks by dynamic shared memory, over blocks by an atomic.
#include "check.h"

__global__ void sum(const int *in, int n, unsigned long long *out) {
    extern __shared__ long long parts[];
    long long own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += in[i];
    for (int step = 16; step > 0; step /= 2) own += __shfl_down_sync(0xffffffff, own, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        long long block = 0;
        for (unsigned warp = 0; warp < blockDim.x / 32; warp++) block += parts[warp];
        atomicAdd(out, (unsigned long long)block);
    }
}

int main() {
    std::vector<int> in = Numbers{}.ints(100000, 1000);
    Buffer<int> x(in);
    Buffer<unsigned long long> out(1);
    OK(cudaMemset(out.at, 0, sizeof(unsigned long long)));
    sum<<<7, 128, 4 * sizeof(long long)>>>(x.at, in.size(), out.at);
    OK(cudaDeviceSynchronize());
    HOLDS(out.read()[0] == std::accumulate(in.begin(), in.end(), 0ull));
    return 0;
}
