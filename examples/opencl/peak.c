/* What an OpenCL device does at its peak, as clpeak tells it: bytes per second from its memory, floating-point operations per
   second, and how long an empty launch takes. Each result is checked.

   cc -O2 -o peak peak.c -l:libOpenCL.so.1
   divvy run --device emulated:pocl --memory 1GiB --compute 50% -- ./peak */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) check((call), #call)

static void check(cl_int code, const char *what) {
    if (code != CL_SUCCESS) {
        fprintf(stderr, "%s: error %d\n", what, code);
        exit(1);
    }
}

static const char *SOURCE =
    "kernel void sum(global const float4 *in, global float *out, int each) {"
    "  size_t me = get_global_id(0), all = get_global_size(0); float4 sum = 0;"
    "  for (int n = 0; n < each; n++) sum += in[me + n * all];"
    "  out[me] = sum.x + sum.y + sum.z + sum.w; }"
    "kernel void work(global float *out, int rounds) {"
    "  float4 a = (float4)(get_global_id(0) & 7), b = 0.5f;"
    "  for (int n = 0; n < rounds; n++) { a = mad(a, b, b); b = mad(b, (float4)(0.5f), (float4)(0.25f)); }"
    "  out[get_global_id(0)] = a.x + a.y + a.z + a.w; }"
    "kernel void empty(global float *out) { }";

enum { ITEMS = 16384, EACH = 64, ROUNDS = 4096, LAUNCHES = 200 };

static cl_command_queue queue;

/* Seconds that the device took, by its own clock. */
static double launch(cl_kernel kernel) {
    size_t items = ITEMS;
    cl_event event;
    cl_ulong from, to;
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, &event));
    CHECK(clWaitForEvents(1, &event));
    CHECK(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof from, &from, NULL));
    CHECK(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof to, &to, NULL));
    CHECK(clReleaseEvent(event));
    return (to - from) / 1e9;
}

/* The shortest of some. */
static double fastest(cl_kernel kernel) {
    double best = launch(kernel);
    for (int n = 0; n < 4; n++) {
        double took = launch(kernel);
        if (took < best) best = took;
    }
    return best;
}

int main(void) {
    cl_int code;
    cl_platform_id platform;
    cl_device_id device;
    cl_ulong memory;
    char name[200];
    CHECK(clGetPlatformIDs(1, &platform, NULL));
    CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    CHECK(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL));
    CHECK(clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL));
    printf("device     %s, %llu MiB\n", name, (unsigned long long)(memory >> 20));
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    queue = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &code);
    check(code, "clCreateCommandQueue");
    cl_program program = clCreateProgramWithSource(context, 1, &SOURCE, NULL, &code);
    check(code, "clCreateProgramWithSource");
    CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));

    size_t bytes = (size_t)ITEMS * EACH * 16;
    float *host = malloc(bytes), *result = malloc(ITEMS * sizeof(float));
    for (size_t n = 0; n < bytes / sizeof(float); n++) host[n] = n % 3;
    cl_mem in = clCreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes, host, &code);
    check(code, "clCreateBuffer");
    cl_mem out = clCreateBuffer(context, CL_MEM_WRITE_ONLY, ITEMS * sizeof(float), NULL, &code);
    check(code, "clCreateBuffer");

    cl_kernel sum = clCreateKernel(program, "sum", &code);
    check(code, "clCreateKernel");
    int each = EACH, rounds = ROUNDS, wrong = 0;
    CHECK(clSetKernelArg(sum, 0, sizeof in, &in));
    CHECK(clSetKernelArg(sum, 1, sizeof out, &out));
    CHECK(clSetKernelArg(sum, 2, sizeof each, &each));
    printf("memory     %.2f GB/s\n", bytes / fastest(sum) / 1e9);
    CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, ITEMS * sizeof(float), result, 0, NULL, NULL));
    for (int me = 0; me < ITEMS; me++) {
        float expected = 0;
        for (int n = 0; n < EACH; n++)
            for (int lane = 0; lane < 4; lane++) expected += host[((size_t)me + (size_t)n * ITEMS) * 4 + lane];
        wrong += result[me] != expected;
    }

    cl_kernel work = clCreateKernel(program, "work", &code);
    check(code, "clCreateKernel");
    CHECK(clSetKernelArg(work, 0, sizeof out, &out));
    CHECK(clSetKernelArg(work, 1, sizeof rounds, &rounds));
    printf("compute    %.2f GFLOPS\n", 16.0 * ROUNDS * ITEMS / fastest(work) / 1e9);
    CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, ITEMS * sizeof(float), result, 0, NULL, NULL));
    /* Both sequences tend to a fixed point: b to 0.5, and then a to 1. */
    for (int me = 0; me < ITEMS; me++) wrong += fabsf(result[me] - 4) > 1e-3f;

    cl_kernel empty = clCreateKernel(program, "empty", &code);
    check(code, "clCreateKernel");
    CHECK(clSetKernelArg(empty, 0, sizeof out, &out));
    double took = 0;
    for (int n = 0; n < LAUNCHES; n++) took += launch(empty);
    printf("launch     %.1f us\n", took / LAUNCHES * 1e6);
    printf("%s\n", wrong ? "WRONG" : "right");
    return wrong != 0;
}
