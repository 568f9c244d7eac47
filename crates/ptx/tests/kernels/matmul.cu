// nvrtc: --gpu-architecture=compute_80
// Row-major n x n product through 16 x 16 tiles in shared memory; n need not be a multiple of 16.
#define TILE 16
template <typename T> static __device__ void multiply(const T *a, const T *b, T *c, int n) {
    __shared__ T left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    T sum = 0;
    for (int tile = 0; tile < n; tile += TILE) {
        int across = tile + threadIdx.x, down = tile + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < n && across < n ? a[row * n + across] : T(0);
        right[threadIdx.y][threadIdx.x] = down < n && column < n ? b[down * n + column] : T(0);
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}
extern "C" __global__ void matmul_f32(const float *a, const float *b, float *c, int n) { multiply(a, b, c, n); }
extern "C" __global__ void matmul_f64(const double *a, const double *b, double *c, int n) { multiply(a, b, c, n); }
extern "C" __global__ void matmul_i64(const long long *a, const long long *b, long long *c, int n) { multiply(a, b, c, n); }
