// A kernel writes an array through a surface, and another one reads it as a texture.
#include "check.h"

__global__ void draw(cudaSurfaceObject_t surface, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) surf2Dwrite<int>(x * 1000 + y, surface, x * sizeof(int), y);
}

__global__ void move(cudaSurfaceObject_t from, cudaTextureObject_t same, int *out, int w, int h) {
    int x = threadIdx.x, y = threadIdx.y;
    if (x < w && y < h) {
        int read;
        surf2Dread(&read, from, x * sizeof(int), y);
        out[y * w + x] = read + tex2D<int>(same, x, y);
    }
}

int main() {
    const int w = 20, h = 10;
    cudaChannelFormatDesc ints = cudaCreateChannelDesc<int>();
    cudaArray_t array;
    OK(cudaMallocArray(&array, &ints, w, h, cudaArraySurfaceLoadStore));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaSurfaceObject_t surface;
    cudaTextureObject_t texture;
    cudaTextureDesc sampled = {};
    OK(cudaCreateSurfaceObject(&surface, &resource));
    OK(cudaCreateTextureObject(&texture, &resource, &sampled, nullptr));
    draw<<<dim3(2, 2), dim3(16, 8)>>>(surface, w, h);
    Buffer<int> out(w * h);
    move<<<1, dim3(w, h)>>>(surface, texture, out.at, w, h);
    OK(cudaDeviceSynchronize());
    std::vector<int> found = out.read();
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) HOLDS(found[y * w + x] == 2 * (x * 1000 + y));
    OK(cudaDestroyTextureObject(texture));
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));
    return 0;
}
