// Integers of 8 to 128 bits: products, quotients, shifts and the operations on their bits.
#include "check.h"

__host__ __device__ inline void compute(long long a, long long b, unsigned long long *out) {
    unsigned long long ua = a, ub = b | 1;
    unsigned __int128 wide = (unsigned __int128)ua * ub;
    out[0] = (unsigned long long)(wide >> 64);
    out[1] = a / (b == 0 ? 3 : b);
    out[2] = ua % ub;
    out[3] = (ua << (b & 63)) | (ua >> 7);
    out[4] = (unsigned long long)((long long)a >> (b & 31));
    out[5] = (unsigned char)a * (unsigned short)b + (signed char)a;
    out[6] = (unsigned)a / ((unsigned)b | 1) + (int)a % ((int)(b & 0xffff) + 1);
    out[7] = a < b ? ua ^ ub : ~ua & ub;
}

__global__ void all(const long long *in, unsigned long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) compute(in[i], in[(i + 1) % n], out + 8 * i);
}

int main() {
    Numbers numbers;
    std::vector<long long> in;
    for (int i = 0; i < 200; i++) in.push_back((long long)((unsigned long long)numbers.next() << 32 | numbers.next()) >> i % 40);
    Buffer<long long> x(in);
    Buffer<unsigned long long> out(8 * in.size());
    all<<<2, 128>>>(x.at, out.at, in.size());
    OK(cudaGetLastError());
    std::vector<unsigned long long> found = out.read();
    for (std::size_t i = 0; i < in.size(); i++) {
        unsigned long long expected[8];
        compute(in[i], in[(i + 1) % in.size()], expected);
        for (int f = 0; f < 8; f++) HOLDS(found[8 * i + f] == expected[f]);
    }
    return 0;
}
