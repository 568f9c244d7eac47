// The sieve of Eratosthenes, in bits.
#include "check.h"

__global__ void strike(unsigned *bits, int limit, int root) {
    int p = blockIdx.x * blockDim.x + threadIdx.x + 2;
    if (p > root) return;
    for (int multiple = p * p; multiple < limit; multiple += p) atomicOr(&bits[multiple / 32], 1u << multiple % 32);
}

int main() {
    const int limit = 20000;
    Buffer<unsigned> bits(std::vector<unsigned>(limit / 32));
    strike<<<3, 64>>>(bits.at, limit, 142);
    OK(cudaGetLastError());
    std::vector<unsigned> found = bits.read();
    int count = 0;
    for (int i = 2; i < limit; i++) {
        bool prime = true;
        for (int d = 2; d * d <= i; d++) prime &= i % d != 0;
        HOLDS(prime == !(found[i / 32] >> i % 32 & 1));
        count += prime;
    }
    HOLDS(count == 2262);
    return 0;
}
