// The shortest ways between all pairs of places, by Floyd and Warshall.
#include "check.h"

__global__ void through(int *distance, int n, int k) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && j < n) {
        int other = distance[i * n + k] + distance[k * n + j];
        if (other < distance[i * n + j]) distance[i * n + j] = other;
    }
}

int main() {
    const int n = 40;
    std::vector<int> distance = Numbers{}.ints(n * n, 1000);
    for (int i = 0; i < n; i++) distance[i * n + i] = 0;
    Buffer<int> x(distance);
    for (int k = 0; k < n; k++) {
        through<<<dim3(3, 5), dim3(16, 8)>>>(x.at, n, k);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                distance[i * n + j] = std::min(distance[i * n + j], distance[i * n + k] + distance[k * n + j]);
    }
    OK(cudaGetLastError());
    HOLDS(x.read() == distance);
    return 0;
}
