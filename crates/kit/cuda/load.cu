// Loads a fatbin by the driver's own functions. It ends with 0 when the numbers are right.

#include <cstdio>
#include <cuda.h>
#include <vector>

#define CHECK(call)                                                                                                    \
    if ((call) != CUDA_SUCCESS)                                                                                        \
    return 1

int main(int, char **words) {
    const int count = 32;
    std::vector<char> image;
    FILE *file = std::fopen(words[1], "rb");
    if (!file)
        return 3;
    for (int letter; (letter = std::fgetc(file)) != EOF;)
        image.push_back(letter);
    std::fclose(file);
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr place;
    int values[count];
    for (int at = 0; at < count; at++)
        values[at] = at;
    void *parameters[] = {&place};
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadFatBinary(&module, image.data()));
    CHECK(cuModuleGetFunction(&kernel, module, "twice"));
    CHECK(cuMemAlloc(&place, sizeof values));
    CHECK(cuMemcpyHtoD(place, values, sizeof values));
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, count, 1, 1, 0, nullptr, parameters, nullptr));
    CHECK(cuMemcpyDtoH(values, place, sizeof values));
    for (int at = 0; at < count; at++)
        if (values[at] != 2 * at)
            return 2;
    return 0;
}
