// Events: what they say before, while and after, and how they order streams.
#include "check.h"

__global__ void wait_for(volatile int *flag) {
    while (*flag == 0) {}
}

int main() {
    int *flag;
    OK(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped));
    *flag = 0;
    int *seen;
    OK(cudaHostGetDevicePointer(&seen, flag, 0));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaEvent_t begin, end;
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreateWithFlags(&end, cudaEventBlockingSync));
    OK(cudaEventQuery(begin));
    OK(cudaEventRecord(begin, stream));
    wait_for<<<1, 1, 0, stream>>>(seen);
    OK(cudaEventRecord(end, stream));
    ANSWERS(cudaErrorNotReady, cudaEventQuery(end));
    ANSWERS(cudaErrorNotReady, cudaStreamQuery(stream));
    float ms = 0;
    ANSWERS(cudaErrorNotReady, cudaEventElapsedTime(&ms, begin, end));
    HOLDS(cudaGetLastError() == cudaErrorNotReady);
    *(volatile int *)flag = 1;
    OK(cudaEventSynchronize(end));
    OK(cudaEventQuery(end));
    OK(cudaStreamQuery(stream));
    OK(cudaEventElapsedTime(&ms, begin, end));
    HOLDS(ms > 0);
    ANSWERS(cudaErrorInvalidResourceHandle, cudaEventQuery(nullptr));
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(flag));
    cudaGetLastError();
    return 0;
}
