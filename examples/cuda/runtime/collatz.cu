// How long the numbers' chains are: loops that end at different times in each lane, in 64 bits.
#include "check.h"

__host__ __device__ inline int steps(unsigned long long x) {
    int count = 0;
    while (x != 1) {
        x = x % 2 ? 3 * x + 1 : x / 2;
        count++;
    }
    return count;
}

__global__ void chains(int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = steps(i + 1);
}

int main() {
    const int n = 3000;
    Buffer<int> out(n);
    chains<<<(n + 127) / 128, 128>>>(out.at, n);
    OK(cudaGetLastError());
    std::vector<int> found = out.read();
    for (int i = 0; i < n; i++) HOLDS(found[i] == steps(i + 1));
    return 0;
}
