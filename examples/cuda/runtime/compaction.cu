// What fulfils a condition is kept, in order: ballots within warps, a scan over them.
#include "check.h"

__global__ void keep(const int *in, int *out, int *count, int n) {
    __shared__ int of_warp[32], total;
    if (threadIdx.x == 0) total = 0;
    for (int from = 0; from < n; from += blockDim.x) {
        int i = from + threadIdx.x, value = i < n ? in[i] : 1;
        bool wanted = value % 3 == 0;
        unsigned ballot = __ballot_sync(0xffffffff, wanted);
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) of_warp[warp] = __popc(ballot);
        __syncthreads();
        int before = total;
        for (int other = 0; other < warp; other++) before += of_warp[other];
        if (wanted) out[before + __popc(ballot & ((1u << lane) - 1))] = value;
        __syncthreads();
        if (threadIdx.x == 0)
            for (int other = 0; other < blockDim.x / 32; other++) total += of_warp[other];
        __syncthreads();
    }
    if (threadIdx.x == 0) *count = total;
}

int main() {
    std::vector<int> in = Numbers{}.ints(3000, 1000), expected;
    for (int x : in)
        if (x % 3 == 0) expected.push_back(x);
    Buffer<int> x(in), y(in.size()), count(1);
    keep<<<1, 256>>>(x.at, y.at, count.at, in.size());
    OK(cudaGetLastError());
    HOLDS(count.read()[0] == int(expected.size()));
    std::vector<int> found = y.read();
    HOLDS(std::equal(expected.begin(), expected.end(), found.begin()));
    return 0;
}
