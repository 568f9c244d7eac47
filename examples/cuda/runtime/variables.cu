// Variables in constant, global and managed memory, by their names.
#include "check.h"

__constant__ float weights[4];
__device__ int counter = 3;
__device__ double table[100];
__managed__ int shared_by_both = 5;

__global__ void use(float *out) {
    out[threadIdx.x] = weights[threadIdx.x % 4] * shared_by_both;
    atomicAdd(&counter, 1);
    table[threadIdx.x] = threadIdx.x * 0.5;
    if (threadIdx.x == 0) shared_by_both += 100;
}

int main() {
    HOLDS(shared_by_both == 5);
    shared_by_both = 7;
    float given[4] = {1, 2, 3, 4};
    OK(cudaMemcpyToSymbol(weights, given, sizeof given));
    float third = 30;
    OK(cudaMemcpyToSymbol(weights, &third, sizeof third, 2 * sizeof(float)));
    Buffer<float> out(32);
    use<<<1, 32>>>(out.at);
    OK(cudaDeviceSynchronize());
    std::vector<float> found = out.read();
    for (int i = 0; i < 32; i++) HOLDS(found[i] == (i % 4 == 2 ? 30 : given[i % 4]) * 7);
    HOLDS(shared_by_both == 107);
    int counted = 0;
    OK(cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
    HOLDS(counted == 35);
    double part[2];
    OK(cudaMemcpyFromSymbol(part, table, sizeof part, 10 * sizeof(double)));
    HOLDS(part[0] == 5 && part[1] == 5.5);
    std::size_t size = 0;
    OK(cudaGetSymbolSize(&size, table));
    HOLDS(size == sizeof(double) * 100);
    void *address = nullptr;
    OK(cudaGetSymbolAddress(&address, table));
    double ninth = 0;
    OK(cudaMemcpy(&ninth, (double *)address + 9, sizeof ninth, cudaMemcpyDeviceToHost));
    HOLDS(ninth == 4.5);
    ANSWERS(cudaErrorInvalidValue, cudaMemcpyToSymbol(weights, given, sizeof given, 4));
    ANSWERS(cudaErrorInvalidSymbol, cudaMemcpyToSymbol(given, given, sizeof given));
    ANSWERS(cudaErrorInvalidMemcpyDirection,
            cudaMemcpyToSymbol(weights, given, sizeof given, 0, cudaMemcpyDeviceToHost));
    cudaGetLastError();
    return 0;
}
