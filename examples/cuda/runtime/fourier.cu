// A fast Fourier transform of complex numbers, one launch a level.
#include "check.h"

__global__ void butterfly(float2 *x, int n, int half) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 2) return;
    int at = i / half * half * 2 + i % half;
    float sine, cosine;
    sincospif(-float(i % half) / half, &sine, &cosine);
    float2 a = x[at], b = x[at + half];
    float2 turned = make_float2(b.x * cosine - b.y * sine, b.x * sine + b.y * cosine);
    x[at] = make_float2(a.x + turned.x, a.y + turned.y);
    x[at + half] = make_float2(a.x - turned.x, a.y - turned.y);
}

int main() {
    const int n = 256, bits = 8;
    std::vector<float> in = Numbers{}.floats(2 * n);
    std::vector<float2> ordered(n);
    for (int i = 0; i < n; i++) {
        int reversed = 0;
        for (int bit = 0; bit < bits; bit++) reversed |= (i >> bit & 1) << (bits - 1 - bit);
        ordered[reversed] = make_float2(in[2 * i], in[2 * i + 1]);
    }
    Buffer<float2> x(ordered);
    for (int half = 1; half < n; half *= 2) butterfly<<<2, 64>>>(x.at, n, half);
    OK(cudaGetLastError());
    std::vector<float2> found = x.read();
    for (int k = 0; k < n; k++) {
        double re = 0, im = 0;
        for (int i = 0; i < n; i++) {
            double angle = -2 * 3.14159265358979323846 * k * i / n;
            re += in[2 * i] * std::cos(angle) - in[2 * i + 1] * std::sin(angle);
            im += in[2 * i] * std::sin(angle) + in[2 * i + 1] * std::cos(angle);
        }
        HOLDS(near(found[k].x, re, 1e-4) && near(found[k].y, im, 1e-4));
    }
    return 0;
}
