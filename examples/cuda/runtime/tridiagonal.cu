// Many small systems of equations, one thread each, in local memory.
#include "check.h"

__global__ void solve(const float *lower, const float *middle, const float *upper, const float *right, float *x, int n) {
    float c[32], d[32];
    int at = (blockIdx.x * blockDim.x + threadIdx.x) * n;
    c[0] = upper[at] / middle[at];
    d[0] = right[at] / middle[at];
    for (int i = 1; i < n; i++) {
        float m = 1 / (middle[at + i] - lower[at + i] * c[i - 1]);
        c[i] = upper[at + i] * m;
        d[i] = (right[at + i] - lower[at + i] * d[i - 1]) * m;
    }
    x[at + n - 1] = d[n - 1];
    for (int i = n - 2; i >= 0; i--) x[at + i] = d[i] - c[i] * x[at + i + 1];
}

int main() {
    const int n = 32, systems = 64;
    std::vector<float> lower = Numbers{1}.floats(n * systems), upper = Numbers{2}.floats(n * systems);
    std::vector<float> middle = Numbers{3}.floats(n * systems), right = Numbers{4}.floats(n * systems);
    for (float &m : middle) m += 3;
    Buffer<float> a(lower), b(middle), c(upper), d(right), x(n * systems);
    solve<<<2, 32>>>(a.at, b.at, c.at, d.at, x.at, n);
    OK(cudaGetLastError());
    std::vector<float> found = x.read();
    for (int s = 0; s < systems; s++)
        for (int i = 0; i < n; i++) {
            int at = s * n + i;
            double sum = middle[at] * found[at];
            if (i > 0) sum += lower[at] * found[at - 1];
            if (i < n - 1) sum += upper[at] * found[at + 1];
            HOLDS(near(sum, right[at], 1e-5));
        }
    return 0;
}
