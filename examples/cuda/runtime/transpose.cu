// A transposition through shared memory with a padded row, of several types.
#include "check.h"

template <class T>
__global__ void transpose(const T *in, T *out, int w, int h) {
    __shared__ T tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < w && y < h) tile[threadIdx.y][threadIdx.x] = in[y * w + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    if (x < h && y < w) out[y * h + x] = tile[threadIdx.x][threadIdx.y];
}

template <class T>
static bool turned(int w, int h) {
    std::vector<T> in(w * h);
    for (int i = 0; i < w * h; i++) in[i] = T(i % 251);
    Buffer<T> x(in), y(w * h);
    transpose<<<dim3((w + 15) / 16, (h + 15) / 16), dim3(16, 16)>>>(x.at, y.at, w, h);
    std::vector<T> out = y.read();
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w; j++)
            if (out[j * h + i] != in[i * w + j]) return false;
    return cudaGetLastError() == cudaSuccess;
}

int main() {
    HOLDS(turned<unsigned char>(33, 50));
    HOLDS(turned<short>(64, 16));
    HOLDS(turned<int>(47, 61));
    HOLDS(turned<double>(20, 70));
    return 0;
}
