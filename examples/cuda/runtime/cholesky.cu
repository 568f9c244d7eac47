// A Cholesky decomposition in double precision, column by column.
#include "check.h"

__global__ void column(double *a, int n, int k) {
    __shared__ double pivot;
    if (threadIdx.x == 0) {
        pivot = sqrt(a[k * n + k]);
        a[k * n + k] = pivot;
    }
    __syncthreads();
    for (int i = k + 1 + threadIdx.x; i < n; i += blockDim.x) a[i * n + k] /= pivot;
}

__global__ void update(double *a, int n, int k) {
    int j = k + 1 + blockIdx.x, i = j + threadIdx.x;
    if (i < n) a[i * n + j] -= a[i * n + k] * a[j * n + k];
}

int main() {
    const int n = 48;
    std::vector<float> b = Numbers{}.floats(n * n);
    std::vector<double> a(n * n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            for (int k = 0; k < n; k++) a[i * n + j] += double(b[i * n + k]) * b[j * n + k];
            if (i == j) a[i * n + j] += n;
        }
    Buffer<double> x(a);
    for (int k = 0; k < n; k++) {
        column<<<1, 64>>>(x.at, n, k);
        if (k + 1 < n) update<<<n - k - 1, 64>>>(x.at, n, k);
    }
    OK(cudaGetLastError());
    std::vector<double> l = x.read();
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = 0;
            for (int k = 0; k <= j; k++) sum += l[i * n + k] * l[j * n + k];
            HOLDS(near(sum, a[i * n + j], 1e-11));
        }
    return 0;
}
