// Conway's game on a torus of bytes.
#include "check.h"

__host__ __device__ inline unsigned char next(const unsigned char *in, int x, int y, int w, int h) {
    int around = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            if (dx || dy) around += in[(y + dy + h) % h * w + (x + dx + w) % w];
    return around == 3 || (around == 2 && in[y * w + x]);
}

__global__ void step(const unsigned char *in, unsigned char *out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) out[y * w + x] = next(in, x, y, w, h);
}

int main() {
    const int w = 45, h = 33;
    std::vector<unsigned char> world, other(w * h);
    for (int cell : Numbers{}.ints(w * h, 3)) world.push_back(cell == 0);
    Buffer<unsigned char> a(world), b(w * h);
    for (int round = 0; round < 10; round++) {
        step<<<dim3(3, 5), dim3(16, 8)>>>(round % 2 ? b.at : a.at, round % 2 ? a.at : b.at, w, h);
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) other[y * w + x] = next(world.data(), x, y, w, h);
        world = other;
    }
    HOLDS(a.read() == world);
    return 0;
}
