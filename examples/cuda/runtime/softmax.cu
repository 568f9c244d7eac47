// Softmax of rows, one block a row, with maxima and sums by shuffles.
#include "check.h"

template <class F>
__device__ float over_block(float x, F combine, float *shared) {
    for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffff, x, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) x = combine(x, shared[warp]);
    __syncthreads();
    return x;
}

__global__ void softmax(const float *in, float *out, int n) {
    __shared__ float shared[32];
    const float *row = in + blockIdx.x * n;
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
    most = over_block(most, [](float a, float b) { return fmaxf(a, b); }, shared);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(row[i] - most);
    sum = over_block(sum, [](float a, float b) { return a + b; }, shared);
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = expf(row[i] - most) / sum;
}

int main() {
    const int rows = 9, n = 333;
    std::vector<float> in = Numbers{}.floats(rows * n);
    for (float &x : in) x = x * 20 - 10;
    Buffer<float> x(in), y(rows * n);
    softmax<<<rows, 128>>>(x.at, y.at, n);
    OK(cudaGetLastError());
    std::vector<float> found = y.read();
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += std::exp(double(in[row * n + i]));
        for (int i = 0; i < n; i++) HOLDS(near(found[row * n + i], std::exp(double(in[row * n + i])) / sum));
    }
    return 0;
}
