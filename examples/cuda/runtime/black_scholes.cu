// Prices of options, by the formula of Black and Scholes.
#include "check.h"

__host__ __device__ inline float normal(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

__host__ __device__ inline float price(float spot, float strike, float years) {
    float rate = 0.02f, volatility = 0.3f, root = sqrtf(years);
    float d1 = (logf(spot / strike) + (rate + 0.5f * volatility * volatility) * years) / (volatility * root);
    return spot * normal(d1) - strike * expf(-rate * years) * normal(d1 - volatility * root);
}

__global__ void prices(const float *spot, const float *strike, const float *years, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = price(spot[i], strike[i], years[i]);
}

int main() {
    const int n = 2000;
    std::vector<float> spot, strike, years;
    Numbers numbers;
    for (int i = 0; i < n; i++) {
        spot.push_back(5 + 25 * numbers.unit());
        strike.push_back(1 + 99 * numbers.unit());
        years.push_back(0.25f + 9.75f * numbers.unit());
    }
    Buffer<float> a(spot), b(strike), c(years), out(n);
    prices<<<(n + 127) / 128, 128>>>(a.at, b.at, c.at, out.at, n);
    OK(cudaGetLastError());
    std::vector<float> found = out.read();
    for (int i = 0; i < n; i++) HOLDS(near(found[i], price(spot[i], strike[i], years[i]), 1e-4));
    return 0;
}
