// reduce: the sum of n floats. Every thread adds its stride, a warp adds up by shuffles, the block's warps meet in
// shared memory, and one atomic add per block joins the blocks.
//
// Divvy's own source. The PTX beside it is written from it by `cargo xtask examples`.

constexpr unsigned WARP = 32;

__device__ static double warp_sum(double value) {
    for (unsigned offset = WARP / 2; offset > 0; offset /= 2) {
        value += __shfl_down_sync(0xffffffffu, value, offset);
    }
    return value;
}

// Adds the sum of x to *total, which the caller sets to 0. The number of threads in a block is a multiple of 32.
extern "C" __global__ void reduce_sum(unsigned long long n, const float *x, double *total) {
    __shared__ double of_warp[WARP];

    unsigned long long stride = (unsigned long long)blockDim.x * gridDim.x;
    double sum = 0.0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        sum += x[i];
    }

    sum = warp_sum(sum);
    unsigned warp = threadIdx.x / WARP;
    unsigned lane = threadIdx.x % WARP;
    if (lane == 0) {
        of_warp[warp] = sum;
    }
    __syncthreads();

    if (warp == 0) {
        sum = warp_sum(lane < blockDim.x / WARP ? of_warp[lane] : 0.0);
        if (lane == 0) {
            atomicAdd(total, sum);
        }
    }
}
