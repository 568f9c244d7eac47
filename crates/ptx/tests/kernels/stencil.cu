// nvrtc: --gpu-architecture=compute_80
// Five-point heat step in two dimensions, and a 7-wide blur with weights in constant memory.
extern "C" __global__ void heat(const float *in, float *out, int width, int height, float rate) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int at = y * width + x;
    if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
        out[at] = in[at];
    } else {
        out[at] = in[at] + rate * (in[at - 1] + in[at + 1] + in[at - width] + in[at + width] - 4.0f * in[at]);
    }
}

__constant__ float weights[7] = {0.03125f, 0.109375f, 0.21875f, 0.28125f, 0.21875f, 0.109375f, 0.03125f};
__device__ unsigned long long touched;

extern "C" __global__ void blur(const float *in, float *out, int n) {
    __shared__ float near[256 + 6];
    int i = blockIdx.x * 256 + threadIdx.x;
    near[threadIdx.x + 3] = i < n ? in[i] : 0.0f;
    if (threadIdx.x < 3) {
        near[threadIdx.x] = i >= 3 ? in[i - 3] : 0.0f;
        near[threadIdx.x + 259] = i + 256 < n ? in[i + 256] : 0.0f;
    }
    __syncthreads();
    if (i >= n) return;
    float sum = 0;
    for (int k = 0; k < 7; k++) sum += weights[k] * near[threadIdx.x + k];
    out[i] = sum;
    atomicAdd(&touched, 1ull);
}
