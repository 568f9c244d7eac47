// A list of copies in one call.
#include "check.h"

int main() {
    const int n = 64, count = 5;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    std::vector<std::vector<int>> in, out(count, std::vector<int>(n));
    std::vector<int *> memory(count);
    std::vector<void *> to, back, from_device;
    std::vector<const void *> from, from_memory;
    std::vector<std::size_t> sizes(count, n * sizeof(int));
    for (int i = 0; i < count; i++) {
        in.push_back(Numbers{unsigned(i + 1)}.ints(n, 1000));
        OK(cudaMalloc(&memory[i], n * sizeof(int)));
    }
    for (int i = 0; i < count; i++) {
        to.push_back(memory[i]);
        from.push_back(in[i].data());
        back.push_back(out[i].data());
        from_memory.push_back(memory[i]);
    }
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
#if CUDART_VERSION >= 13000
    OK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, &attributes, &first, 1, stream));
    OK(cudaMemcpyBatchAsync(back.data(), from_memory.data(), sizes.data(), count, &attributes, &first, 1, stream));
#else
    std::size_t failed;
    OK(cudaMemcpyBatchAsync(to.data(), (void **)from.data(), sizes.data(), count, &attributes, &first, 1, &failed, stream));
    OK(cudaMemcpyBatchAsync(back.data(), (void **)from_memory.data(), sizes.data(), count, &attributes, &first, 1, &failed,
                            stream));
#endif
    OK(cudaStreamSynchronize(stream));
    HOLDS(in == out);
    for (int *x : memory) OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
    return 0;
}
