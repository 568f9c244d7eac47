// nvrtc: --gpu-architecture=compute_80
// What `cargo xtask bench ptx` measures and no other file here has.

// Each block's part of a sum.
extern "C" __global__ void sum(const float *in, float *out, int n) {
    __shared__ float part[256];
    float mine = 0;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) mine += in[i];
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__device__ float normal(float d) {
    float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
    float tail = 0.39894228f * __expf(-0.5f * d * d) *
                 (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0 ? 1.0f - tail : tail;
}

// Prices of European options.
extern "C" __global__ void black_scholes(float *call, float *put, const float *price, const float *strike,
                                         const float *years, float rate, float volatility, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = price[i], x = strike[i], t = years[i], root = sqrtf(t);
    float d1 = (__logf(s / x) + (rate + 0.5f * volatility * volatility) * t) / (volatility * root);
    float d2 = d1 - volatility * root;
    float discount = __expf(-rate * t), n1 = normal(d1), n2 = normal(d2);
    call[i] = s * n1 - x * discount * n2;
    put[i] = x * discount * (1.0f - n2) - s * (1.0f - n1);
}

// 64 multiplications and additions of each element.
extern "C" __global__ void fma_f64(double *values, double a, double b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = values[i];
#pragma unroll
    for (int k = 0; k < 64; k++) x = fma(x, a, b);
    values[i] = x;
}

// Transforms of 1,024 complex numbers, a block each, by Stockham's method with a table of roots.
extern "C" __global__ void fft(const float *real, const float *imaginary, float *out_real, float *out_imaginary,
                               const float *root_real, const float *root_imaginary) {
    __shared__ float re[2][1024], im[2][1024];
    int t = threadIdx.x, first = blockIdx.x * 1024;
    for (int i = t; i < 1024; i += 512) {
        re[0][i] = real[first + i];
        im[0][i] = imaginary[first + i];
    }
    __syncthreads();
    int from = 0;
    for (int half = 1, step = 512; half < 1024; half *= 2, step /= 2) {
        int k = t & (half - 1), to = 2 * t - k;
        float wr = root_real[k * step], wi = root_imaginary[k * step];
        float ar = re[from][t], ai = im[from][t], br = re[from][t + 512], bi = im[from][t + 512];
        float cr = br * wr - bi * wi, ci = br * wi + bi * wr;
        re[1 - from][to] = ar + cr;
        im[1 - from][to] = ai + ci;
        re[1 - from][to + half] = ar - cr;
        im[1 - from][to + half] = ai - ci;
        from = 1 - from;
        __syncthreads();
    }
    for (int i = t; i < 1024; i += 512) {
        out_real[first + i] = re[from][i];
        out_imaginary[first + i] = im[from][i];
    }
}

// Each 1,024 elements sorted, by a bitonic network.
extern "C" __global__ void sort(unsigned *values) {
    __shared__ unsigned s[1024];
    int t = threadIdx.x, first = blockIdx.x * 1024;
    s[t] = values[first + t];
    s[t + 512] = values[first + t + 512];
    __syncthreads();
    for (int size = 2; size <= 1024; size *= 2)
        for (int j = size / 2; j > 0; j /= 2) {
            int i = 2 * t - (t & (j - 1));
            unsigned a = s[i], b = s[i + j], low = min(a, b), high = max(a, b);
            bool up = (i & size) == 0;
            s[i] = up ? low : high;
            s[i + j] = up ? high : low;
            __syncthreads();
        }
    values[first + t] = s[t];
    values[first + t + 512] = s[t + 512];
}

// A filter of 5 x 5 over a picture that has a rim of two elements.
extern "C" __global__ void conv2d(const float *in, const float *filter, float *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0;
#pragma unroll
    for (int v = 0; v < 5; v++)
#pragma unroll
        for (int u = 0; u < 5; u++) sum += filter[5 * v + u] * in[(y + v) * (width + 4) + x + u];
    out[y * width + x] = sum;
}
