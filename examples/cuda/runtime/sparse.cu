// A sparse matrix times a vector, one warp a row.
#include "check.h"

__global__ void multiply(const int *begin, const int *column, const double *value, const double *x, double *y, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    double sum = 0;
    for (int i = begin[row] + lane; i < begin[row + 1]; i += 32) sum += value[i] * x[column[i]];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (lane == 0) y[row] = sum;
}

int main() {
    const int rows = 200;
    Numbers numbers;
    std::vector<int> begin{0}, column;
    std::vector<double> value, x, expected(rows);
    for (int i = 0; i < rows; i++) x.push_back(numbers.unit());
    for (int row = 0; row < rows; row++) {
        for (int count = numbers.next() % 70; count > 0; count--) {
            column.push_back(numbers.next() % rows);
            value.push_back(numbers.unit());
            expected[row] += value.back() * x[column.back()];
        }
        begin.push_back(column.size());
    }
    Buffer<int> b(begin), c(column);
    Buffer<double> v(value), in(x), out(rows);
    multiply<<<(rows * 32 + 127) / 128, 128>>>(b.at, c.at, v.at, in.at, out.at, rows);
    OK(cudaGetLastError());
    std::vector<double> found = out.read();
    for (int row = 0; row < rows; row++) HOLDS(near(found[row], expected[row], 1e-12));
    return 0;
}
