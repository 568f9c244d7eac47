// The distance between two words, one diagonal at a time within a block.
#include "check.h"

__global__ void distance(const char *a, const char *b, int n, int m, int *table) {
    int width = m + 1;
    for (int i = threadIdx.x; i <= n; i += blockDim.x) table[i * width] = i;
    for (int j = threadIdx.x; j <= m; j += blockDim.x) table[j] = j;
    __syncthreads();
    for (int diagonal = 2; diagonal <= n + m; diagonal++) {
        for (int i = 1 + threadIdx.x; i <= n; i += blockDim.x) {
            int j = diagonal - i;
            if (j < 1 || j > m) continue;
            int replace = table[(i - 1) * width + j - 1] + (a[i - 1] != b[j - 1]);
            table[i * width + j] =
                min(replace, min(table[(i - 1) * width + j], table[i * width + j - 1]) + 1);
        }
        __syncthreads();
    }
}

int main() {
    std::vector<char> a, b;
    for (int x : Numbers{}.ints(90, 4)) a.push_back('a' + x);
    for (int x : Numbers{77}.ints(70, 4)) b.push_back('a' + x);
    int n = a.size(), m = b.size();
    Buffer<char> x(a), y(b);
    Buffer<int> table((n + 1) * (m + 1));
    distance<<<1, 64>>>(x.at, y.at, n, m, table.at);
    OK(cudaGetLastError());
    std::vector<int> expected((n + 1) * (m + 1));
    for (int i = 0; i <= n; i++)
        for (int j = 0; j <= m; j++)
            expected[i * (m + 1) + j] =
                i == 0   ? j
                : j == 0 ? i
                         : std::min(expected[(i - 1) * (m + 1) + j - 1] + (a[i - 1] != b[j - 1]),
                                    std::min(expected[(i - 1) * (m + 1) + j], expected[i * (m + 1) + j - 1]) + 1);
    HOLDS(table.read() == expected);
    return 0;
}
