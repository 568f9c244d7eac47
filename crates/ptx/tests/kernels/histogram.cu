// nvrtc: --gpu-architecture=compute_80
// nvrtc_debug: --gpu-architecture=compute_90 --device-debug
// 256 bins of bytes: privately in shared memory, then added to the global ones.
extern "C" __global__ void histogram(const unsigned char *in, unsigned *bins, int n) {
    __shared__ unsigned mine[256];
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) mine[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[in[i]], 1u);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x)
        if (mine[bin]) atomicAdd(&bins[bin], mine[bin]);
}

// One atomic for all lanes of a warp with the same value.
extern "C" __global__ void histogram_matched(const unsigned char *in, unsigned *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned peers = __match_any_sync(__activemask(), (unsigned)in[i]);
    if (__ffs(peers) - 1 == threadIdx.x % 32) atomicAdd(&bins[in[i]], __popc(peers));
}
