// A breadth-first search, one launch a level.
#include "check.h"

__global__ void level(const int *begin, const int *edges, int *distance, int n, int depth, int *again) {
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= n || distance[node] != depth) return;
    for (int i = begin[node]; i < begin[node + 1]; i++)
        if (atomicCAS(&distance[edges[i]], -1, depth + 1) == -1) *again = 1;
}

int main() {
    const int n = 1000;
    Numbers numbers;
    std::vector<int> begin{0}, edges, expected(n, -1), wave{0};
    for (int node = 0; node < n; node++) {
        for (int i = numbers.next() % 4; i > 0; i--) edges.push_back(numbers.next() % n);
        begin.push_back(edges.size());
    }
    expected[0] = 0;
    while (!wave.empty()) {
        std::vector<int> next;
        for (int node : wave)
            for (int i = begin[node]; i < begin[node + 1]; i++)
                if (expected[edges[i]] == -1) {
                    expected[edges[i]] = expected[node] + 1;
                    next.push_back(edges[i]);
                }
        wave = next;
    }
    std::vector<int> start(n, -1);
    start[0] = 0;
    Buffer<int> b(begin), e(edges), d(start), again(1);
    int more = 1;
    for (int depth = 0; more; depth++) {
        OK(cudaMemset(again.at, 0, sizeof(int)));
        level<<<(n + 127) / 128, 128>>>(b.at, e.at, d.at, n, depth, again.at);
        OK(cudaMemcpy(&more, again.at, sizeof more, cudaMemcpyDeviceToHost));
    }
    HOLDS(d.read() == expected);
    return 0;
}
