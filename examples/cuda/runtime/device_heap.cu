// Memory that kernels allocate, and text that they print.
#include "check.h"

__global__ void lists(int *out) {
    int *own = (int *)malloc(100 * sizeof(int));
    if (!own) {
        out[threadIdx.x] = -1;
        return;
    }
    for (int i = 0; i < 100; i++) own[i] = i * threadIdx.x;
    int sum = 0;
    for (int i = 0; i < 100; i++) sum += own[i];
    free(own);
    struct Pair {
        int a, b;
    };
    Pair *pair = new Pair{sum, 1};
    out[threadIdx.x] = pair->a + pair->b;
    delete pair;
    if (threadIdx.x == 3) printf("thread %d of %s: %.2f\n", threadIdx.x, "this block", 1.5);
}

int main() {
    Buffer<int> out(64);
    lists<<<1, 64>>>(out.at);
    OK(cudaDeviceSynchronize());
    std::vector<int> found = out.read();
    for (int i = 0; i < 64; i++) HOLDS(found[i] == 4950 * i + 1);
    return 0;
}
