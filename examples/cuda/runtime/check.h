// What the programs of this folder share: they compare with the CPU, and say what does not hold.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// A call that has to succeed.
#define OK(call)                                                                                    \
    do {                                                                                            \
        cudaError_t answer_ = (call);                                                               \
        if (answer_ != cudaSuccess) {                                                               \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(answer_));    \
            return 1;                                                                               \
        }                                                                                           \
    } while (0)

// A call that has to answer this code.
#define ANSWERS(code, call)                                                                         \
    do {                                                                                            \
        cudaError_t answer_ = (call);                                                               \
        if (answer_ != (code)) {                                                                    \
            std::printf("%s:%d: %s: %s and not %s\n", __FILE__, __LINE__, #call,                     \
                        cudaGetErrorName(answer_), #code);                                          \
            return 1;                                                                               \
        }                                                                                           \
    } while (0)

// What has to hold.
#define HOLDS(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                \
            return 1;                                                                               \
        }                                                                                           \
    } while (0)

// Memory of the device, freed at the end of its scope.
template <class T>
struct Buffer {
    T *at = nullptr;
    std::size_t count;

    explicit Buffer(std::size_t count) : count(count) {
        if (cudaMalloc(&at, count * sizeof(T)) != cudaSuccess) at = nullptr;
    }
    explicit Buffer(const std::vector<T> &from) : Buffer(from.size()) {
        cudaMemcpy(at, from.data(), count * sizeof(T), cudaMemcpyHostToDevice);
    }
    Buffer(const Buffer &) = delete;
    ~Buffer() { cudaFree(at); }

    std::vector<T> read() const {
        std::vector<T> out(count);
        cudaMemcpy(out.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost);
        return out;
    }
};

inline bool near(double a, double b, double tolerance = 1e-5) {
    return std::fabs(a - b) <= tolerance * std::max({1.0, std::fabs(a), std::fabs(b)});
}

// Numbers that look random and are the same each time.
struct Numbers {
    std::uint32_t state = 12345;
    std::uint32_t next() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        return state;
    }
    float unit() { return (next() >> 8) / 16777216.0f; }
    std::vector<float> floats(std::size_t count) {
        std::vector<float> out(count);
        for (float &x : out) x = unit();
        return out;
    }
    std::vector<int> ints(std::size_t count, int below) {
        std::vector<int> out(count);
        for (int &x : out) x = next() % below;
        return out;
    }
};
