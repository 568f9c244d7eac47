// All blocks of a grid wait for each other, again and again.
#include "check.h"

__global__ void rounds(int *x, int n, int times) {
    auto grid = cooperative_groups::this_grid();
    int i = grid.thread_rank();
    for (int round = 0; round < times; round++) {
        int left = x[(i + n - 1) % n];
        grid.sync();
        x[i] += left;
        grid.sync();
    }
}

int main() {
    int n = 512, times = 6, device, works;
    OK(cudaGetDevice(&device));
    OK(cudaDeviceGetAttribute(&works, cudaDevAttrCooperativeLaunch, device));
    HOLDS(works);
    std::vector<int> x = Numbers{}.ints(n, 10), next(n);
    Buffer<int> memory(x);
    void *arguments[] = {&memory.at, &n, &times};
    OK(cudaLaunchCooperativeKernel((void *)rounds, dim3(4), dim3(n / 4), arguments, 0, nullptr));
    OK(cudaDeviceSynchronize());
    for (int round = 0; round < times; round++) {
        for (int i = 0; i < n; i++) next[i] = x[i] + x[(i + n - 1) % n];
        x = next;
    }
    HOLDS(memory.read() == x);
    return 0;
}
