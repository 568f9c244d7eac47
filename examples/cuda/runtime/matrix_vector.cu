// A matrix times a vector by vectors of four, one warp a row, next to reading through the cache for constants.
#include "check.h"

__global__ void multiply(const float4 *__restrict__ a, const float4 *__restrict__ x, float *y, int rows, int quads) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    float sum = 0;
    for (int i = threadIdx.x; i < quads; i += 32) {
        float4 p = __ldg(&a[row * quads + i]), q = __ldg(&x[i]);
        sum += p.x * q.x + p.y * q.y + p.z * q.z + p.w * q.w;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x == 0) y[row] = sum;
}

int main() {
    const int rows = 50, columns = 256;
    std::vector<float> a = Numbers{}.floats(rows * columns), x = Numbers{8}.floats(columns);
    Buffer<float> matrix(a), vector(x), out(rows);
    multiply<<<(rows + 3) / 4, dim3(32, 4)>>>((const float4 *)matrix.at, (const float4 *)vector.at, out.at, rows,
                                              columns / 4);
    OK(cudaGetLastError());
    std::vector<float> found = out.read();
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < columns; i++) sum += double(a[row * columns + i]) * x[i];
        HOLDS(near(found[row], sum));
    }
    return 0;
}
