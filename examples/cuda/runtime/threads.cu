// Many threads of the host, each with a stream and memory of its own.
#include "check.h"

__global__ void step(unsigned *x, int n, unsigned seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 1664525u + seed;
}

static bool worker(unsigned seed) {
    const int n = 1000;
    cudaStream_t stream;
    unsigned *x;
    if (cudaStreamCreate(&stream) != cudaSuccess || cudaMalloc(&x, n * sizeof(unsigned)) != cudaSuccess) return false;
    cudaMemsetAsync(x, 0, n * sizeof(unsigned), stream);
    for (int round = 0; round < 20; round++) step<<<8, 128, 0, stream>>>(x, n, seed);
    std::vector<unsigned> out(n);
    cudaMemcpyAsync(out.data(), x, n * sizeof(unsigned), cudaMemcpyDeviceToHost, stream);
    cudaError_t waited = cudaStreamSynchronize(stream);
    unsigned expected = 0;
    for (int round = 0; round < 20; round++) expected = expected * 1664525u + seed;
    cudaFree(x);
    cudaStreamDestroy(stream);
    return waited == cudaSuccess && cudaGetLastError() == cudaSuccess && out == std::vector<unsigned>(n, expected);
}

int main() {
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 8; seed++) threads.emplace_back([&good, seed] { good += worker(seed); });
    for (std::thread &thread : threads) thread.join();
    HOLDS(good == 8);
    return 0;
}
