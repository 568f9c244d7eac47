// Streams, events, waiting of one stream for another, and functions of the host in between.
#include "check.h"

__global__ void times(int *x, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}

__global__ void plus(int *x, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}

static void CUDART_CB note(void *data) { ((std::vector<int> *)data)->push_back(1); }
static void CUDART_CB called(cudaStream_t, cudaError_t status, void *data) {
    ((std::vector<int> *)data)->push_back(status == cudaSuccess ? 2 : -2);
}

int main() {
    const int n = 4096;
    int *host;
    OK(cudaMallocHost(&host, n * sizeof(int)));
    for (int i = 0; i < n; i++) host[i] = i;
    Buffer<int> x(n);
    cudaStream_t first, second;
    OK(cudaStreamCreate(&first));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    cudaEvent_t done, begin, end;
    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    std::vector<int> noted;
    OK(cudaEventRecord(begin, first));
    OK(cudaMemcpyAsync(x.at, host, n * sizeof(int), cudaMemcpyHostToDevice, first));
    times<<<n / 256, 256, 0, first>>>(x.at, n, 3);
    OK(cudaLaunchHostFunc(first, note, &noted));
    OK(cudaEventRecord(done, first));
    OK(cudaStreamWaitEvent(second, done, 0));
    plus<<<n / 256, 256, 0, second>>>(x.at, n, 5);
    OK(cudaMemcpyAsync(host, x.at, n * sizeof(int), cudaMemcpyDeviceToHost, second));
    OK(cudaStreamAddCallback(second, called, &noted, 0));
    OK(cudaEventRecord(end, second));
    OK(cudaEventSynchronize(end));
    OK(cudaStreamSynchronize(second));
    OK(cudaStreamQuery(first));
    for (int i = 0; i < n; i++) HOLDS(host[i] == i * 3 + 5);
    HOLDS((noted == std::vector<int>{1, 2}));
    float ms = -1;
    OK(cudaEventElapsedTime(&ms, begin, end));
    HOLDS(ms >= 0);
    ANSWERS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, begin, done));
    int least, greatest;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t urgent;
    OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    int priority;
    unsigned flags;
    OK(cudaStreamGetPriority(urgent, &priority));
    OK(cudaStreamGetFlags(urgent, &flags));
    HOLDS(priority == greatest && flags == cudaStreamNonBlocking);
    for (cudaStream_t stream : {first, second, urgent}) OK(cudaStreamDestroy(stream));
    for (cudaEvent_t event : {done, begin, end}) OK(cudaEventDestroy(event));
    OK(cudaFreeHost(host));
    cudaGetLastError();
    return 0;
}
