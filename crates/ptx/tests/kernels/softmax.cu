// nvrtc: --gpu-architecture=compute_80
// Softmax of each row, one block a row; and with fast maths (ex2.approx, div.full).
template <bool FAST> static __device__ void rows(const float *in, float *out, int columns) {
    __shared__ float part[32];
    const float *row = in + blockIdx.x * columns;
    float top = -__int_as_float(0x7f800000), sum = 0;
    for (int k = threadIdx.x; k < columns; k += blockDim.x) top = fmaxf(top, row[k]);
    for (int step = 16; step > 0; step >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
    __syncthreads();
    top = part[0];
    for (int k = 1; k < blockDim.x / 32; k++) top = fmaxf(top, part[k]);
    __syncthreads();
    for (int k = threadIdx.x; k < columns; k += blockDim.x) sum += FAST ? __expf(row[k] - top) : expf(row[k] - top);
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < blockDim.x / 32; k++) sum += part[k];
    for (int k = threadIdx.x; k < columns; k += blockDim.x) {
        float power = FAST ? __expf(row[k] - top) : expf(row[k] - top);
        out[blockIdx.x * columns + k] = FAST ? __fdividef(power, sum) : power / sum;
    }
}
extern "C" __global__ void softmax(const float *in, float *out, int columns) { rows<false>(in, out, columns); }
extern "C" __global__ void softmax_fast(const float *in, float *out, int columns) { rows<true>(in, out, columns); }
