// A product of matrices in tiles of shared memory.
#include "check.h"

template <int TILE>
__global__ void multiply(const float *a, const float *b, float *c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

int main() {
    const int n = 64;
    std::vector<float> a = Numbers{}.floats(n * n), b = Numbers{7}.floats(n * n);
    Buffer<float> x(a), y(b), z(n * n);
    multiply<8><<<dim3(n / 8, n / 8), dim3(8, 8)>>>(x.at, y.at, z.at, n);
    std::vector<float> eight = z.read();
    multiply<16><<<dim3(n / 16, n / 16), dim3(16, 16)>>>(x.at, y.at, z.at, n);
    std::vector<float> sixteen = z.read();
    OK(cudaGetLastError());
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += double(a[i * n + k]) * b[k * n + j];
            HOLDS(near(eight[i * n + j], sum) && near(sixteen[i * n + j], sum));
        }
    return 0;
}
