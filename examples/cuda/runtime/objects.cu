// Classes with virtual functions, templates, recursion and function pointers on the device.
#include "check.h"

struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    float side;
    __device__ explicit Square(float side) : side(side) {}
    __device__ float area() const override { return side * side; }
};
struct Circle : Shape {
    float radius;
    __device__ explicit Circle(float radius) : radius(radius) {}
    __device__ float area() const override { return 3 * radius * radius; }
};

__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ float doubled(float x) { return 2 * x; }
__device__ float halved(float x) { return x / 2; }

template <class F>
__device__ float applied(F f, float x) {
    return f(f(x));
}

__global__ void areas(float *out, int choose) {
    Square square(3);
    Circle circle(2);
    const Shape *shapes[] = {&square, &circle};
    out[0] = shapes[choose]->area();
    out[1] = shapes[1 - choose]->area();
    out[2] = fibonacci(10 + choose);
    float (*function)(float) = choose ? doubled : halved;
    out[3] = function(5);
    out[4] = applied([=](float x) { return x + choose; }, 1);
}

int main() {
    Buffer<float> out(5);
    areas<<<1, 1>>>(out.at, 0);
    HOLDS((out.read() == std::vector<float>{9, 12, 55, 2.5f, 1}));
    areas<<<1, 1>>>(out.at, 1);
    HOLDS((out.read() == std::vector<float>{12, 9, 89, 10, 3}));
    OK(cudaGetLastError());
    return 0;
}
