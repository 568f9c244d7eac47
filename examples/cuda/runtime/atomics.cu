// Atomic operations of every kind, and the last block that comes to an end.
#include "check.h"

__device__ unsigned arrived;

__global__ void all(int *i, unsigned *u, float *f, double *d, unsigned long long *l, int *last) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&i[0], t);
    atomicSub(&i[1], 1);
    atomicMin(&i[2], -t);
    atomicMax(&i[3], t);
    atomicAnd(&u[0], ~(1u << t % 20));
    atomicOr(&u[1], 1u << t % 20);
    atomicXor(&u[2], unsigned(t));
    atomicInc(&u[3], 6);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    unsigned long long seen = *l, before;
    do {
        before = seen;
        seen = atomicCAS(l, before, before + t);
    } while (seen != before);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&arrived, 1) == gridDim.x - 1) *last = i[0];
}

int main() {
    const int n = 256;
    Buffer<int> i(std::vector<int>{0, 0, 0, 0}), last(1);
    Buffer<unsigned> u(std::vector<unsigned>{~0u, 0, 0, 0});
    Buffer<float> f(std::vector<float>{0});
    Buffer<double> d(std::vector<double>{0});
    Buffer<unsigned long long> l(std::vector<unsigned long long>{0});
    all<<<4, n / 4>>>(i.at, u.at, f.at, d.at, l.at, last.at);
    OK(cudaDeviceSynchronize());
    HOLDS((i.read() == std::vector<int>{n * (n - 1) / 2, -n, -(n - 1), n - 1}));
    unsigned parity = 0;
    for (unsigned t = 0; t < n; t++) parity ^= t;
    HOLDS((u.read() == std::vector<unsigned>{~0xfffffu, 0xfffff, parity, n % 7}));
    HOLDS(f.read()[0] == n / 2 && d.read()[0] == n / 4 && l.read()[0] == n * (n - 1) / 2);
    HOLDS(last.read()[0] == n * (n - 1) / 2);
    return 0;
}
