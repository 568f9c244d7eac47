// A wrong address ends the context: every call says so, until the device is reset.
#include "check.h"

__global__ void beyond(int *x) { x[1 << 28] = 1; }
__global__ void set(int *x) { *x = 42; }

int main() {
    int *x;
    OK(cudaMalloc(&x, sizeof(int)));
    beyond<<<1, 1>>>(x);
    ANSWERS(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    HOLDS(cudaGetLastError() == cudaErrorIllegalAddress);
    HOLDS(cudaGetLastError() == cudaErrorIllegalAddress);
    int *y;
    ANSWERS(cudaErrorIllegalAddress, cudaMalloc(&y, sizeof(int)));
    OK(cudaDeviceReset());
    HOLDS(cudaGetLastError() == cudaSuccess);
    OK(cudaMalloc(&y, sizeof(int)));
    set<<<1, 1>>>(y);
    int found = 0;
    OK(cudaMemcpy(&found, y, sizeof found, cudaMemcpyDeviceToHost));
    HOLDS(found == 42);
    OK(cudaFree(y));
    return 0;
}
