// Numbers of 16 bits: half and bfloat16, one by one and in pairs.
#include "check.h"

__global__ void compute(const float *a, const float *b, float *out, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    __half x = __float2half(a[i]), y = __float2half(b[i]);
    out[i] = __half2float(__hfma(x, y, __float2half(1)));
    __half2 pair = __hadd2(__halves2half2(x, y), __float2half2_rn(0.5f));
    out[n + i] = __low2float(pair) + __high2float(pair);
    __nv_bfloat16 p = __float2bfloat16(a[i]), q = __float2bfloat16(b[i]);
    out[2 * n + i] = __bfloat162float(p) * __bfloat162float(q);
    out[3 * n + i] = __hgt(x, y) ? 1 : 0;
}

int main() {
    const int n = 100;
    std::vector<float> a = Numbers{}.floats(n), b = Numbers{5}.floats(n);
    Buffer<float> x(a), y(b), out(4 * n);
    compute<<<1, 128>>>(x.at, y.at, out.at, n);
    OK(cudaDeviceSynchronize());
    std::vector<float> found = out.read();
    for (int i = 0; i < n; i++) {
        HOLDS(near(found[i], a[i] * b[i] + 1, 2e-3));
        HOLDS(near(found[n + i], a[i] + b[i] + 1, 4e-3));
        HOLDS(near(found[2 * n + i], a[i] * b[i], 2e-2));
        HOLDS(found[3 * n + i] == (__half2float(__float2half(a[i])) > __half2float(__float2half(b[i]))));
    }
    return 0;
}
