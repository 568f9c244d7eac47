// Textures of linear memory and of arrays: as they are, filtered, clamped and wrapped.
#include "check.h"

__global__ void line(cudaTextureObject_t texture, float *out, int n) {
    int i = threadIdx.x;
    if (i < n) out[i] = tex1Dfetch<float>(texture, n - 1 - i);
}

__global__ void plane(cudaTextureObject_t texture, float *out, int w, int h, float dx, float dy) {
    int x = threadIdx.x, y = threadIdx.y;
    if (x < w && y < h) out[y * w + x] = tex2D<float>(texture, x + dx, y + dy);
}

__global__ void bytes(cudaTextureObject_t texture, uchar4 *out, float4 *scaled, cudaTextureObject_t normal) {
    int x = threadIdx.x;
    out[x] = tex2D<uchar4>(texture, x + 0.5f, 0.5f);
    scaled[x] = tex2D<float4>(normal, x + 0.5f, 0.5f);
}

int main() {
    const int w = 16, h = 8;
    std::vector<float> in = Numbers{}.floats(w * h);
    Buffer<float> linear(in), out(w * h);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = linear.at;
    resource.res.linear.desc = cudaCreateChannelDesc<float>();
    resource.res.linear.sizeInBytes = w * h * sizeof(float);
    cudaTextureDesc sampled = {};
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &sampled, nullptr));
    line<<<1, w * h>>>(texture, out.at, w * h);
    OK(cudaDeviceSynchronize());
    std::vector<float> found = out.read();
    for (int i = 0; i < w * h; i++) HOLDS(found[i] == in[w * h - 1 - i]);
    cudaResourceDesc described;
    OK(cudaGetTextureObjectResourceDesc(&described, texture));
    HOLDS(described.resType == cudaResourceTypeLinear && described.res.linear.devPtr == linear.at);
    OK(cudaDestroyTextureObject(texture));

    cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    OK(cudaMallocArray(&array, &floats, w, h));
    OK(cudaMemcpy2DToArray(array, 0, 0, in.data(), w * sizeof(float), w * sizeof(float), h, cudaMemcpyHostToDevice));
    std::vector<float> back(w * h);
    OK(cudaMemcpy2DFromArray(back.data(), w * sizeof(float), array, 0, 0, w * sizeof(float), h, cudaMemcpyDeviceToHost));
    HOLDS(back == in);
    cudaExtent extent;
    unsigned flags;
    OK(cudaArrayGetInfo(&floats, &extent, &flags, array));
    HOLDS(floats.x == 32 && floats.f == cudaChannelFormatKindFloat && extent.width == w && extent.height == h);
    resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    for (cudaTextureAddressMode mode : {cudaAddressModeClamp, cudaAddressModeBorder}) {
        sampled.addressMode[0] = sampled.addressMode[1] = mode;
        sampled.filterMode = cudaFilterModePoint;
        OK(cudaCreateTextureObject(&texture, &resource, &sampled, nullptr));
        plane<<<1, dim3(w, h)>>>(texture, out.at, w, h, 3.5f, 0.5f);
        OK(cudaDeviceSynchronize());
        found = out.read();
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) {
                float expected = x + 3 < w ? in[y * w + x + 3] : mode == cudaAddressModeClamp ? in[y * w + w - 1] : 0;
                HOLDS(found[y * w + x] == expected);
            }
        OK(cudaDestroyTextureObject(texture));
    }
    sampled.addressMode[0] = sampled.addressMode[1] = cudaAddressModeClamp;
    sampled.filterMode = cudaFilterModeLinear;
    OK(cudaCreateTextureObject(&texture, &resource, &sampled, nullptr));
    plane<<<1, dim3(w, h)>>>(texture, out.at, w, h, 1.0f, 0.5f);
    OK(cudaDeviceSynchronize());
    found = out.read();
    for (int y = 0; y < h; y++)
        for (int x = 0; x + 1 < w; x++) HOLDS(near(found[y * w + x], (in[y * w + x] + in[y * w + x + 1]) / 2, 1e-2));
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));

    cudaChannelFormatDesc four = cudaCreateChannelDesc<uchar4>();
    OK(cudaMallocArray(&array, &four, 4, 1));
    std::vector<uchar4> colours;
    for (unsigned char i = 0; i < 4; i++) colours.push_back(make_uchar4(i, 2 * i, 50 * i, 255));
    OK(cudaMemcpy2DToArray(array, 0, 0, colours.data(), 16, 16, 1, cudaMemcpyHostToDevice));
    resource.res.array.array = array;
    sampled.filterMode = cudaFilterModePoint;
    sampled.readMode = cudaReadModeElementType;
    cudaTextureObject_t normal;
    OK(cudaCreateTextureObject(&texture, &resource, &sampled, nullptr));
    sampled.readMode = cudaReadModeNormalizedFloat;
    OK(cudaCreateTextureObject(&normal, &resource, &sampled, nullptr));
    Buffer<uchar4> read(4);
    Buffer<float4> scaled(4);
    bytes<<<1, 4>>>(texture, read.at, scaled.at, normal);
    OK(cudaDeviceSynchronize());
    std::vector<uchar4> same = read.read();
    std::vector<float4> parts = scaled.read();
    for (int i = 0; i < 4; i++) {
        HOLDS(std::memcmp(&same[i], &colours[i], 4) == 0);
        HOLDS(near(parts[i].z, 50 * i / 255.0) && parts[i].w == 1);
    }
    OK(cudaDestroyTextureObject(texture));
    OK(cudaDestroyTextureObject(normal));
    OK(cudaFreeArray(array));
    ANSWERS(cudaErrorInvalidValue, cudaCreateTextureObject(&texture, nullptr, &sampled, nullptr));
    cudaGetLastError();
    return 0;
}
