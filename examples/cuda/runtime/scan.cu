// A prefix sum over many blocks: blocks first, then the blocks' sums, then both together.
#include "check.h"

__global__ void blocks(const int *in, int *out, int *sums, int n) {
    __shared__ int part[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    part[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
        int other = threadIdx.x >= step ? part[threadIdx.x - step] : 0;
        __syncthreads();
        part[threadIdx.x] += other;
        __syncthreads();
    }
    if (i < n) out[i] = part[threadIdx.x];
    if (threadIdx.x == 255) sums[blockIdx.x] = part[255];
}

__global__ void offset(int *out, const int *sums, int n) {
    int i = blockIdx.x * 256 + threadIdx.x, before = 0;
    for (int block = 0; block < blockIdx.x; block++) before += sums[block];
    if (i < n) out[i] += before;
}

int main() {
    const int n = 5000, count = (n + 255) / 256;
    std::vector<int> in = Numbers{}.ints(n, 100), expected(n);
    std::partial_sum(in.begin(), in.end(), expected.begin());
    Buffer<int> x(in), y(n), sums(count);
    blocks<<<count, 256>>>(x.at, y.at, sums.at, n);
    offset<<<count, 256>>>(y.at, sums.at, n);
    OK(cudaGetLastError());
    HOLDS(y.read() == expected);
    return 0;
}
