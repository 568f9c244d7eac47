// The area of a circle by chance: the same numbers on both sides.
#include "check.h"

__host__ __device__ inline unsigned next(unsigned &state) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

__host__ __device__ inline unsigned hits(unsigned seed, int tries) {
    unsigned state = seed * 2654435761u + 1, inside = 0;
    for (int i = 0; i < tries; i++) {
        unsigned long long x = next(state) >> 16, y = next(state) >> 16;
        inside += x * x + y * y < 65536ull * 65536ull;
    }
    return inside;
}

__global__ void shoot(unsigned *total, int tries) {
    atomicAdd(total, hits(blockIdx.x * blockDim.x + threadIdx.x, tries));
}

int main() {
    Buffer<unsigned> total(std::vector<unsigned>{0});
    shoot<<<8, 64>>>(total.at, 200);
    OK(cudaGetLastError());
    unsigned expected = 0;
    for (unsigned seed = 0; seed < 512; seed++) expected += hits(seed, 200);
    HOLDS(total.read()[0] == expected);
    HOLDS(near(4.0 * expected / (512 * 200), 3.14159, 0.02));
    return 0;
}
