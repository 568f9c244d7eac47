// The other ways to launch: by pointer, with a list of attributes, by a handle of the kernel.
#include "check.h"

struct Large {
    int values[200];
};

__global__ void sum(Large by_value, const int *more, int n, long long *out) {
    long long own = 0;
    for (int x : by_value.values) own += x;
    for (int i = 0; i < n; i++) own += more[i];
    *out = own + blockDim.x * 1000000ll;
}

int main() {
    Large large;
    for (int i = 0; i < 200; i++) large.values[i] = i * i;
    std::vector<int> more = Numbers{}.ints(50, 9);
    long long expected = std::accumulate(more.begin(), more.end(), 0ll);
    for (int x : large.values) expected += x;
    Buffer<int> memory(more);
    Buffer<long long> out(1);
    int n = more.size();
    void *arguments[] = {&large, &memory.at, &n, &out.at};
    OK(cudaLaunchKernel((void *)sum, dim3(1), dim3(1), arguments, 0, nullptr));
    HOLDS(out.read()[0] == expected + 1000000);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributePriority;
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = dim3(1);
    configuration.blockDim = dim3(2);
    configuration.attrs = &attribute;
    configuration.numAttrs = 1;
    const int *pointer = memory.at;
    OK(cudaLaunchKernelEx(&configuration, sum, large, pointer, n, out.at));
    HOLDS(out.read()[0] == expected + 2000000);
    cudaKernel_t kernel;
    OK(cudaGetKernel(&kernel, (void *)sum));
    OK(cudaLaunchKernel((void *)kernel, dim3(1), dim3(3), arguments, 0, nullptr));
    HOLDS(out.read()[0] == expected + 3000000);
    cudaFunction_t function;
    OK(cudaGetFuncBySymbol(&function, (void *)sum));
    HOLDS(function != nullptr);
    const char *name;
    OK(cudaFuncGetName(&name, (void *)sum));
    HOLDS(std::strstr(name, "sum") != nullptr);
    return 0;
}
