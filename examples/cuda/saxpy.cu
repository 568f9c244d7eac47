// saxpy: y = a x + y, the smallest useful kernel. One thread per element, striding over the grid so that any
// launch shape gives the right result.
//
// Divvy's own source. The PTX beside it is written from it by `cargo xtask examples`.

extern "C" __global__ void saxpy(unsigned long long n, float a, const float *x, float *y) {
    unsigned long long stride = (unsigned long long)blockDim.x * gridDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        y[i] = a * x[i] + y[i];
    }
}
