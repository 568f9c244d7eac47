// nvrtc: --gpu-architecture=compute_80
// nvrtc_debug: --gpu-architecture=compute_90 --device-debug
// Inclusive prefix sums of one block's elements, by shuffles within a warp and shared memory between warps;
// and the exclusive sums over blocks by a chain of flags in global memory.
static __device__ int warp_scan(int value) {
    int lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step <<= 1) {
        int below = __shfl_up_sync(0xffffffff, value, step);
        if (lane >= step) value += below;
    }
    return value;
}

static __device__ __noinline__ int block_scan(int value, int *warps) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = warp_scan(value);
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    if (warp == 0) warps[lane] = warp_scan(lane < blockDim.x / 32 ? warps[lane] : 0);
    __syncthreads();
    return warp > 0 ? value + warps[warp - 1] : value;
}

extern "C" __global__ void scan(const int *in, int *out, int n, volatile int *sums, volatile int *ready) {
    __shared__ int warps[32];
    __shared__ int before;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = block_scan(i < n ? in[i] : 0, warps);
    if (threadIdx.x == blockDim.x - 1) {
        int sum = 0;
        if (blockIdx.x > 0) {
            while (ready[blockIdx.x - 1] == 0) {}
            __threadfence();
            sum = sums[blockIdx.x - 1];
        }
        sums[blockIdx.x] = sum + value;
        __threadfence();
        ready[blockIdx.x] = 1;
        before = sum;
    }
    __syncthreads();
    if (i < n) out[i] = value + before;
}
