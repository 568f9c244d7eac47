// A bitonic sort in shared memory, then merges in global memory.
#include "check.h"

__global__ void step(int *x, int n, int size, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ stride;
    if (other > i && other < n) {
        bool rising = (i & size) == 0;
        if ((x[i] > x[other]) == rising) {
            int swap = x[i];
            x[i] = x[other];
            x[other] = swap;
        }
    }
}

int main() {
    const int n = 2048;
    std::vector<int> in = Numbers{}.ints(n, 1000000);
    Buffer<int> x(in);
    for (int size = 2; size <= n; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) step<<<n / 256, 256>>>(x.at, n, size, stride);
    OK(cudaGetLastError());
    std::sort(in.begin(), in.end());
    HOLDS(x.read() == in);
    return 0;
}
