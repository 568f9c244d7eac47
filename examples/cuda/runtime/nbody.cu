// Bodies that attract each other, in tiles.
#include "check.h"

__global__ void forces(const float4 *bodies, float3 *out, int n) {
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 own = bodies[i];
    float3 sum = make_float3(0, 0, 0);
    for (int from = 0; from < n; from += 64) {
        tile[threadIdx.x] = bodies[from + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < 64; j++) {
            float dx = tile[j].x - own.x, dy = tile[j].y - own.y, dz = tile[j].z - own.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float strength = tile[j].w * inverse * inverse * inverse;
            sum.x += dx * strength;
            sum.y += dy * strength;
            sum.z += dz * strength;
        }
        __syncthreads();
    }
    out[i] = sum;
}

int main() {
    const int n = 256;
    Numbers numbers;
    std::vector<float4> bodies;
    for (int i = 0; i < n; i++)
        bodies.push_back(make_float4(numbers.unit(), numbers.unit(), numbers.unit(), numbers.unit()));
    Buffer<float4> x(bodies);
    Buffer<float3> y(n);
    forces<<<n / 64, 64>>>(x.at, y.at, n);
    OK(cudaGetLastError());
    std::vector<float3> found = y.read();
    for (int i = 0; i < n; i++) {
        double sum[3] = {};
        for (const float4 &b : bodies) {
            double d[3] = {b.x - bodies[i].x, b.y - bodies[i].y, b.z - bodies[i].z};
            double square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + 0.01;
            for (int k = 0; k < 3; k++) sum[k] += d[k] * b.w / (square * std::sqrt(square));
        }
        HOLDS(near(found[i].x, sum[0], 1e-4) && near(found[i].y, sum[1], 1e-4) && near(found[i].z, sum[2], 1e-4));
    }
    return 0;
}
