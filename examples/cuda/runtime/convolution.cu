// A separable convolution with its weights in constant memory and a border in shared memory.
#include "check.h"

constexpr int RADIUS = 3;
__constant__ float kernel_weights[2 * RADIUS + 1];

__global__ void rows(const float *in, float *out, int w, int h) {
    __shared__ float line[128 + 2 * RADIUS];
    int x = blockIdx.x * 128 + threadIdx.x, y = blockIdx.y;
    for (int i = threadIdx.x; i < 128 + 2 * RADIUS; i += 128) {
        int from = blockIdx.x * 128 + i - RADIUS;
        line[i] = from >= 0 && from < w ? in[y * w + from] : 0;
    }
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int k = 0; k <= 2 * RADIUS; k++) sum += kernel_weights[k] * line[threadIdx.x + k];
    if (x < w) out[y * w + x] = sum;
}

int main() {
    const int w = 300, h = 9;
    float weights[] = {1, 4, 9, 16, 9, 4, 1};
    OK(cudaMemcpyToSymbol(kernel_weights, weights, sizeof weights));
    std::vector<float> in = Numbers{}.floats(w * h);
    Buffer<float> x(in), y(w * h);
    rows<<<dim3((w + 127) / 128, h), 128>>>(x.at, y.at, w, h);
    OK(cudaGetLastError());
    std::vector<float> found = y.read();
    for (int row = 0; row < h; row++)
        for (int i = 0; i < w; i++) {
            double sum = 0;
            for (int k = -RADIUS; k <= RADIUS; k++)
                if (i + k >= 0 && i + k < w) sum += weights[k + RADIUS] * in[row * w + i + k];
            HOLDS(near(found[row * w + i], sum));
        }
    return 0;
}
