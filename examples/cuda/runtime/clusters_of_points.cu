// k-means: points go to the nearest centre, centres to the mean of their points.
#include "check.h"

__global__ void assign(const float2 *points, int n, const float2 *centres, int k, int *nearest, float *sums, int *counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int best = 0;
    float least = INFINITY;
    for (int c = 0; c < k; c++) {
        float dx = points[i].x - centres[c].x, dy = points[i].y - centres[c].y;
        float square = dx * dx + dy * dy;
        if (square < least) {
            least = square;
            best = c;
        }
    }
    nearest[i] = best;
    atomicAdd(&sums[2 * best], points[i].x);
    atomicAdd(&sums[2 * best + 1], points[i].y);
    atomicAdd(&counts[best], 1);
}

int main() {
    const int n = 900, k = 3;
    Numbers numbers;
    std::vector<float2> points, centres{{0, 0}, {1, 1}, {9, 0}};
    for (int i = 0; i < n; i++)
        points.push_back(make_float2(numbers.unit() + i % k * 5, numbers.unit() + i % k * (i % k == 2 ? -3 : 4)));
    Buffer<float2> x(points);
    Buffer<int> nearest(n);
    for (int round = 0; round < 8; round++) {
        Buffer<float2> at(centres);
        Buffer<float> sums(std::vector<float>(2 * k));
        Buffer<int> counts(std::vector<int>(k, 0));
        assign<<<8, 128>>>(x.at, n, at.at, k, nearest.at, sums.at, counts.at);
        OK(cudaGetLastError());
        std::vector<float> total = sums.read();
        std::vector<int> of = counts.read();
        HOLDS(std::accumulate(of.begin(), of.end(), 0) == n);
        for (int c = 0; c < k; c++)
            if (of[c]) centres[c] = make_float2(total[2 * c] / of[c], total[2 * c + 1] / of[c]);
    }
    std::vector<int> found = nearest.read();
    for (int i = 0; i < n; i++) HOLDS(found[i] == found[i % k]);
    HOLDS(found[0] != found[1] && found[1] != found[2]);
    return 0;
}
