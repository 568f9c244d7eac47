// histogram: how often each byte value occurs. A block counts in shared memory with atomics, then adds its counts
// to the device's, so that most of the contention stays on chip.
//
// Divvy's own source. The PTX beside it is written from it by `cargo xtask examples`.

constexpr unsigned BINS = 256;

// Adds the counts of the n bytes at data to bins[256], which the caller sets to 0.
extern "C" __global__ void histogram(unsigned long long n, const unsigned char *data, unsigned *bins) {
    __shared__ unsigned of_block[BINS];
    for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        of_block[bin] = 0;
    }
    __syncthreads();

    unsigned long long stride = (unsigned long long)blockDim.x * gridDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        atomicAdd(&of_block[data[i]], 1u);
    }
    __syncthreads();

    for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        if (of_block[bin] != 0) {
            atomicAdd(&bins[bin], of_block[bin]);
        }
    }
}
