// What nvcc makes by default: CUDA's runtime is linked statically, and the kernel is in a fatbin inside the program. It ends
// with 0 when the numbers are right.

#include <cuda_runtime.h>

__global__ void twice(int *values) { values[threadIdx.x] *= 2; }

#define CHECK(call)                                                                                                    \
    if ((call) != cudaSuccess)                                                                                         \
    return 1

int main() {
    const int count = 32;
    int values[count], *first, *second;
    cudaStream_t stream;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    size_t free, total;
    for (int at = 0; at < count; at++)
        values[at] = at;
    CHECK(cudaMemGetInfo(&free, &total));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&event));
    CHECK(cudaMalloc(&first, sizeof values));
    CHECK(cudaMallocAsync(&second, sizeof values, stream));
    CHECK(cudaMemcpyAsync(first, values, sizeof values, cudaMemcpyHostToDevice, stream));
    twice<<<1, count, 0, stream>>>(first);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    twice<<<1, count, 0, stream>>>(first);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&ready, graph, 0));
    CHECK(cudaGraphLaunch(ready, stream));
    CHECK(cudaMemcpyAsync(second, first, sizeof values, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(values, second, sizeof values, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(second, stream));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(first));
    for (int at = 0; at < count; at++)
        if (values[at] != 4 * at)
            return 2;
    return 0;
}
