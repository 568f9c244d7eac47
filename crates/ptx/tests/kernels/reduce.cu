// nvrtc: --gpu-architecture=compute_80
// nvrtc_lines: --gpu-architecture=compute_100 --generate-line-info
// Sums four ways: a tree in dynamic shared memory, warp shuffles, one atomic per thread, redux; and a maximum.
extern "C" __global__ void reduce_tree(const float *in, float *out, int n) {
    extern __shared__ float part[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? in[i] : 0.0f;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

extern "C" __global__ void reduce_shuffle(const double *in, double *out, int n) {
    __shared__ double warps[32];
    double sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
        for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, step);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

extern "C" __global__ void reduce_atomic(const unsigned *in, unsigned long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(out, (unsigned long long)in[i]);
}

extern "C" __global__ void reduce_redux(const unsigned *in, unsigned *sum, int *least, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned value = i < n ? in[i] : 0;
    unsigned part = __reduce_add_sync(0xffffffff, value);
    int low = __reduce_min_sync(0xffffffff, (int)value);
    if (threadIdx.x % 32 == 0) {
        atomicAdd(sum, part);
        atomicMin(least, low);
    }
}

extern "C" __global__ void max_by_cas(const float *in, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned seen = *(volatile unsigned *)out;
    while (__uint_as_float(seen) < in[i]) {
        unsigned old = atomicCAS(out, seen, __float_as_uint(in[i]));
        if (old == seen) break;
        seen = old;
    }
}
