// Rows with a pitch, and boxes: copied and filled.
#include "check.h"

__global__ void fill(cudaPitchedPtr box, cudaExtent extent) {
    for (int z = 0; z < extent.depth; z++)
        for (int y = threadIdx.y; y < extent.height; y += blockDim.y) {
            int *row = (int *)((char *)box.ptr + (z * extent.height + y) * box.pitch);
            for (int x = threadIdx.x; x < extent.width / sizeof(int); x += blockDim.x) row[x] += x + 100 * y + 10000 * z;
        }
}

int main() {
    const int w = 37, h = 11, d = 3;
    std::vector<int> in(w * h), out(w * h);
    std::iota(in.begin(), in.end(), 0);
    int *rows;
    std::size_t pitch;
    OK(cudaMallocPitch(&rows, &pitch, w * sizeof(int), h));
    HOLDS(pitch >= w * sizeof(int) && pitch % 32 == 0);
    OK(cudaMemcpy2D(rows, pitch, in.data(), w * sizeof(int), w * sizeof(int), h, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(out.data(), w * sizeof(int), rows, pitch, w * sizeof(int), h, cudaMemcpyDeviceToHost));
    HOLDS(in == out);
    OK(cudaMemset2D(rows, pitch, 0xff, 10 * sizeof(int), 5));
    OK(cudaMemcpy2D(out.data(), w * sizeof(int), rows, pitch, w * sizeof(int), h, cudaMemcpyDeviceToHost));
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) HOLDS(out[y * w + x] == (x < 10 && y < 5 ? -1 : in[y * w + x]));
    ANSWERS(cudaErrorInvalidPitchValue,
            cudaMemcpy2D(rows, 8, in.data(), w * sizeof(int), w * sizeof(int), h, cudaMemcpyHostToDevice));
    OK(cudaFree(rows));

    cudaExtent extent = make_cudaExtent(w * sizeof(int), h, d);
    cudaPitchedPtr box;
    OK(cudaMalloc3D(&box, extent));
    OK(cudaMemset3D(box, 0, extent));
    fill<<<1, dim3(16, 4)>>>(box, extent);
    std::vector<int> all(w * h * d);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = box;
    copy.dstPtr = make_cudaPitchedPtr(all.data(), w * sizeof(int), w * sizeof(int), h);
    copy.extent = extent;
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    for (int z = 0; z < d; z++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) HOLDS(all[(z * h + y) * w + x] == x + 100 * y + 10000 * z);
    // A part of it, from within.
    std::vector<int> part(5 * 4 * 2);
    copy.srcPos = make_cudaPos(3 * sizeof(int), 2, 1);
    copy.dstPtr = make_cudaPitchedPtr(part.data(), 5 * sizeof(int), 5 * sizeof(int), 4);
    copy.extent = make_cudaExtent(5 * sizeof(int), 4, 2);
    OK(cudaMemcpy3D(&copy));
    HOLDS(part[0] == 10203 && part[39] == 7 + 500 + 20000);
    OK(cudaFree(box.ptr));
    cudaGetLastError();
    return 0;
}
