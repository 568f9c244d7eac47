// Work of two streams is captured into a graph, and the graph is updated by another capture.
#include "check.h"

__global__ void add(int *x, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}

static int record(cudaStream_t stream, int *a, int *b, int n, int by, cudaGraph_t *graph) {
    cudaStream_t other;
    cudaEvent_t fork, join;
    OK(cudaStreamCreate(&other));
    OK(cudaEventCreate(&fork));
    OK(cudaEventCreate(&join));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<2, 128, 0, stream>>>(a, n, by);
    OK(cudaEventRecord(fork, stream));
    OK(cudaStreamWaitEvent(other, fork, 0));
    add<<<2, 128, 0, other>>>(b, n, 2 * by);
    OK(cudaEventRecord(join, other));
    add<<<2, 128, 0, stream>>>(a, n, by);
    OK(cudaStreamWaitEvent(stream, join, 0));
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    HOLDS(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, graph));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaStreamDestroy(other));
    return 0;
}

int main() {
    const int n = 200;
    Buffer<int> a(n), b(n);
    OK(cudaMemset(a.at, 0, n * sizeof(int)));
    OK(cudaMemset(b.at, 0, n * sizeof(int)));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaGraph_t graph, next;
    HOLDS(record(stream, a.at, b.at, n, 1, &graph) == 0);
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 10; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    HOLDS(a.read() == std::vector<int>(n, 20) && b.read() == std::vector<int>(n, 20));
    HOLDS(record(stream, a.at, b.at, n, 100, &next) == 0);
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphExecUpdate(exec, next, &info));
    HOLDS(info.result == cudaGraphExecUpdateSuccess);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    HOLDS(a.read() == std::vector<int>(n, 220) && b.read() == std::vector<int>(n, 220));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphDestroy(next));
    OK(cudaStreamDestroy(stream));
    return 0;
}
