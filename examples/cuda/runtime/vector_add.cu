// Two vectors are added, over several launches.
#include "check.h"

__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

int main() {
    for (int n : {1, 31, 1000, 50001}) {
        std::vector<float> a = Numbers{}.floats(n), b = Numbers{99}.floats(n);
        Buffer<float> x(a), y(b), z(n);
        add<<<(n + 255) / 256, 256>>>(x.at, y.at, z.at, n);
        OK(cudaGetLastError());
        std::vector<float> c = z.read();
        for (int i = 0; i < n; i++) HOLDS(c[i] == a[i] + b[i]);
    }
    return 0;
}
