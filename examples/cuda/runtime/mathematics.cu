// Functions of single and double precision against the C library's.
#include "check.h"

template <class T>
__global__ void functions(const T *in, T *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T x = in[i];
    out[0 * n + i] = sin(x) + cos(x);
    out[1 * n + i] = exp(x);
    out[2 * n + i] = log(x + 1);
    out[3 * n + i] = sqrt(x) + cbrt(x);
    out[4 * n + i] = pow(x, T(1.7));
    out[5 * n + i] = tanh(x) + atan2(x, T(2));
    out[6 * n + i] = erf(x);
    out[7 * n + i] = fmod(x * 10, T(3)) + floor(x * 7) + rint(x * 5);
}

template <class T>
static int compare(double tolerance) {
    const int n = 300;
    std::vector<T> in;
    for (float x : Numbers{}.floats(n)) in.push_back(T(x) * 4);
    Buffer<T> x(in), y(8 * n);
    functions<<<3, 128>>>(x.at, y.at, n);
    OK(cudaDeviceSynchronize());
    std::vector<T> out = y.read();
    for (int i = 0; i < n; i++) {
        double v = in[i];
        T t = in[i];
        double expected[] = {std::sin(v) + std::cos(v), std::exp(v), std::log(v + 1), std::sqrt(v) + std::cbrt(v),
                             std::pow(v, double(T(1.7))), std::tanh(v) + std::atan2(v, 2), std::erf(v),
                             double(std::fmod(t * 10, T(3)) + std::floor(t * 7) + std::rint(t * 5))};
        for (int f = 0; f < 8; f++) HOLDS(near(out[f * n + i], expected[f], tolerance));
    }
    return 0;
}

int main() { return compare<float>(3e-6) || compare<double>(1e-13); }
