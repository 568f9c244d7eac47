// A graph that allocates and frees what it needs, has a child, and records events.
#include "check.h"

__global__ void fill(int *x, int n, int with) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = with + i;
}

int main() {
    int n = 256, with = 40;
    std::vector<int> out(n);
    cudaGraph_t graph, child;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphCreate(&child, 0));
    cudaMemAllocNodeParams memory = {};
    memory.poolProps.allocType = cudaMemAllocationTypePinned;
    memory.poolProps.location.type = cudaMemLocationTypeDevice;
    memory.bytesize = n * sizeof(int);
    cudaGraphNode_t allocate, work, copy, release, nested, empty, recorded;
    OK(cudaGraphAddMemAllocNode(&allocate, graph, nullptr, 0, &memory));
    HOLDS(memory.dptr != nullptr);
    void *arguments[] = {&memory.dptr, &n, &with};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)fill;
    kernel.gridDim = dim3(2);
    kernel.blockDim = dim3(128);
    kernel.kernelParams = arguments;
    OK(cudaGraphAddKernelNode(&work, graph, &allocate, 1, &kernel));
    OK(cudaGraphAddMemcpyNode1D(&copy, graph, &work, 1, out.data(), memory.dptr, n * sizeof(int),
                                cudaMemcpyDeviceToHost));
    OK(cudaGraphAddMemFreeNode(&release, graph, &copy, 1, memory.dptr));
    cudaEvent_t event;
    OK(cudaEventCreate(&event));
    OK(cudaGraphAddEmptyNode(&empty, child, nullptr, 0));
    OK(cudaGraphAddEventRecordNode(&recorded, child, &empty, 1, event));
    OK(cudaGraphAddChildGraphNode(&nested, graph, &release, 1, child));
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, nullptr));
    OK(cudaEventSynchronize(event));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++) HOLDS(out[i] == 40 + i);
    std::uint64_t reserved = 0;
    OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphDestroy(child));
    OK(cudaEventDestroy(event));
    OK(cudaDeviceGraphMemTrim(0));
    return 0;
}
