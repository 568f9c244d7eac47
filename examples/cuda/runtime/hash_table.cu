// A table that all threads put keys into, by compare and swap.
#include "check.h"

constexpr unsigned SIZE = 4096, EMPTY = ~0u;

__global__ void insert(const unsigned *keys, int n, unsigned *table, unsigned *counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (unsigned at = keys[i] * 2654435761u % SIZE;; at = (at + 1) % SIZE) {
        unsigned seen = atomicCAS(&table[at], EMPTY, keys[i]);
        if (seen == EMPTY || seen == keys[i]) {
            atomicAdd(&counts[at], 1);
            return;
        }
    }
}

int main() {
    std::vector<unsigned> keys, expected(1500);
    for (int key : Numbers{}.ints(6000, 1500)) {
        keys.push_back(key);
        expected[key]++;
    }
    std::vector<unsigned> empty(SIZE, EMPTY), none(SIZE);
    Buffer<unsigned> x(keys), table(empty), counts(none);
    insert<<<(6000 + 255) / 256, 256>>>(x.at, keys.size(), table.at, counts.at);
    OK(cudaGetLastError());
    std::vector<unsigned> key = table.read(), count = counts.read(), found(1500);
    for (unsigned at = 0; at < SIZE; at++)
        if (key[at] != EMPTY) found[key[at]] += count[at];
    HOLDS(found == expected);
    return 0;
}
