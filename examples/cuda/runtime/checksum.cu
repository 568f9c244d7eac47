// Checksums of blocks of bytes, by a table in constant memory.
#include "check.h"

__constant__ unsigned table[256];

__global__ void checksums(const unsigned char *in, unsigned *out, int blocks, int size) {
    int block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= blocks) return;
    unsigned crc = ~0u;
    for (int i = 0; i < size; i++) crc = table[(crc ^ in[block * size + i]) & 0xff] ^ (crc >> 8);
    out[block] = ~crc;
}

int main() {
    std::vector<unsigned> entries(256);
    for (unsigned i = 0; i < 256; i++) {
        unsigned x = i;
        for (int bit = 0; bit < 8; bit++) x = x & 1 ? 0xedb88320u ^ (x >> 1) : x >> 1;
        entries[i] = x;
    }
    OK(cudaMemcpyToSymbol(table, entries.data(), 1024));
    const int blocks = 100, size = 77;
    std::vector<unsigned char> in;
    for (int x : Numbers{}.ints(blocks * size, 256)) in.push_back(x);
    std::memcpy(in.data(), "123456789", 9);
    Buffer<unsigned char> x(in);
    Buffer<unsigned> out(blocks), nine(1);
    checksums<<<2, 64>>>(x.at, out.at, blocks, size);
    checksums<<<1, 1>>>(x.at, nine.at, 1, 9);
    OK(cudaGetLastError());
    HOLDS(nine.read()[0] == 0xcbf43926);
    std::vector<unsigned> found = out.read();
    for (int block = 0; block < blocks; block++) {
        unsigned crc = ~0u;
        for (int i = 0; i < size; i++) crc = entries[(crc ^ in[block * size + i]) & 0xff] ^ (crc >> 8);
        HOLDS(found[block] == ~crc);
    }
    return 0;
}
