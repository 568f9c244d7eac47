// Heat that spreads: two buffers that change places.
#include "check.h"

__global__ void spread(const float *in, float *out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    if (x == 0 || y == 0 || x == w - 1 || y == h - 1) {
        out[y * w + x] = in[y * w + x];
        return;
    }
    out[y * w + x] = 0.25f * (in[y * w + x - 1] + in[y * w + x + 1] + in[(y - 1) * w + x] + in[(y + 1) * w + x]);
}

int main() {
    const int w = 70, h = 40;
    std::vector<float> heat(w * h), next(w * h);
    for (int x = 0; x < w; x++) heat[x] = 100;
    Buffer<float> a(heat), b(w * h);
    float *from = a.at, *to = b.at;
    for (int step = 0; step < 20; step++) {
        spread<<<dim3(5, 5), dim3(16, 8)>>>(from, to, w, h);
        std::swap(from, to);
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                next[y * w + x] = x == 0 || y == 0 || x == w - 1 || y == h - 1
                                      ? heat[y * w + x]
                                      : 0.25f * (heat[y * w + x - 1] + heat[y * w + x + 1] + heat[(y - 1) * w + x] +
                                                 heat[(y + 1) * w + x]);
        heat = next;
    }
    OK(cudaMemcpy(next.data(), from, w * h * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < w * h; i++) HOLDS(near(next[i], heat[i]));
    return 0;
}
