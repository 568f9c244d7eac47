// A graph made node by node: copies, a fill, a kernel, a function of the host; changed, and launched again.
#include "check.h"

__global__ void scale(float *x, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * by + 1;
}

static void CUDART_CB increase(void *data) { ++*(int *)data; }

int main() {
    int n = 500, calls = 0;
    std::vector<float> in(n, 2), out(n);
    Buffer<float> x(n), y(n);
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t up, fill, work, down, host;
    OK(cudaGraphAddMemcpyNode1D(&up, graph, nullptr, 0, x.at, in.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    cudaMemsetParams set = {};
    set.dst = y.at;
    set.elementSize = 4;
    set.width = n;
    set.height = 1;
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &set));
    float by = 3;
    void *arguments[] = {&x.at, &n, &by};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)scale;
    kernel.gridDim = dim3(4);
    kernel.blockDim = dim3(128);
    kernel.kernelParams = arguments;
    cudaGraphNode_t before[] = {up, fill};
    OK(cudaGraphAddKernelNode(&work, graph, before, 2, &kernel));
    OK(cudaGraphAddMemcpyNode1D(&down, graph, &work, 1, out.data(), x.at, n * sizeof(float), cudaMemcpyDeviceToHost));
    cudaHostNodeParams call = {increase, &calls};
    OK(cudaGraphAddHostNode(&host, graph, &down, 1, &call));
    std::size_t nodes = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    HOLDS(nodes == 5);
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(work, &type));
    HOLDS(type == cudaGraphNodeTypeKernel);
    cudaKernelNodeParams found = {};
    OK(cudaGraphKernelNodeGetParams(work, &found));
    HOLDS(found.func == (void *)scale && found.gridDim.x == 4 && found.blockDim.x == 128);

    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int round = 0; round < 3; round++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    HOLDS(calls == 3);
    for (float x : out) HOLDS(x == 7);
    by = 10;
    OK(cudaGraphExecKernelNodeSetParams(exec, work, &kernel));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    for (float x : out) HOLDS(x == 21);
    for (float zero : y.read()) HOLDS(zero == 0);
    OK(cudaGraphNodeSetEnabled(exec, work, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    for (float x : out) HOLDS(x == 2);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
    return 0;
}
