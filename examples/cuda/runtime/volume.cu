// A three-dimensional array: filled by a copy, read as a texture, copied back in part.
#include "check.h"

__global__ void read(cudaTextureObject_t texture, short *out, int w, int h, int d) {
    int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
    if (x < w && y < h && z < d) out[(z * h + y) * w + x] = tex3D<short>(texture, x + 0.5f, y + 0.5f, z + 0.5f);
}

int main() {
    const int w = 8, h = 6, d = 4;
    std::vector<short> in(w * h * d);
    std::iota(in.begin(), in.end(), -50);
    cudaChannelFormatDesc shorts = cudaCreateChannelDesc<short>();
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &shorts, make_cudaExtent(w, h, d)));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(in.data(), w * sizeof(short), w, h);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(w, h, d);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc sampled = {};
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &sampled, nullptr));
    Buffer<short> out(in.size());
    read<<<1, dim3(w, h, d)>>>(texture, out.at, w, h, d);
    OK(cudaDeviceSynchronize());
    HOLDS(out.read() == in);
    std::vector<short> part(3 * 2 * 2);
    cudaMemcpy3DParms back = {};
    back.srcArray = array;
    back.srcPos = make_cudaPos(2, 3, 1);
    back.dstPtr = make_cudaPitchedPtr(part.data(), 3 * sizeof(short), 3, 2);
    back.extent = make_cudaExtent(3, 2, 2);
    back.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&back));
    HOLDS(part[0] == in[(1 * h + 3) * w + 2] && part[11] == in[(2 * h + 4) * w + 4]);
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));
    return 0;
}
