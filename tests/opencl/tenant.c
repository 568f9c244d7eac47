/* An OpenCL program that does what it is told: one of the functions at the end, by name. It prints a line for each thing it
   tried, and knows nothing of Divvy. */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

static const size_t MIB = 1 << 20;

static void say(const char *what, long long number) {
    char line[160];
    int length = snprintf(line, sizeof line, "%s %lld\n", what, number);
    if (write(1, line, length) != length) exit(9);
}

static void must(cl_int code, const char *what) {
    if (code != CL_SUCCESS) {
        say(what, code);
        exit(3);
    }
}

static void begin(void) {
    cl_int code;
    must(clGetPlatformIDs(1, &platform, NULL), "platform");
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "device");
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    must(code, "context");
    queue = clCreateCommandQueue(context, device, 0, &code);
    must(code, "queue");
}

static cl_kernel build(const char *source, const char *name) {
    cl_int code;
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
    must(code, "program");
    must(clBuildProgram(program, 1, &device, "", NULL, NULL), "build");
    cl_kernel kernel = clCreateKernel(program, name, &code);
    must(code, "kernel");
    return kernel;
}

/* Whether so many bytes can be had just now. */
static int fits(size_t bytes) {
    cl_int code;
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    if (buffer) clReleaseMemObject(buffer);
    return buffer != NULL && code == CL_SUCCESS;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Waits until so many bytes can be had; an end that a driver tells later comes within seconds. */
static void until_fits(const char *what, size_t bytes) {
    double end = now() + 20;
    while (!fits(bytes) && now() < end) usleep(1000);
    say(what, fits(bytes));
}

/* What each call that allocates says to twice as much as the slice has. */
static void limits(size_t bytes) {
    cl_int code;
    cl_ulong size = 0;
    begin();
    must(clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof size, &size, NULL), "memory");
    say("global", size);
    must(clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof size, &size, NULL), "most");
    say("most", size);
    code = 1;
    clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    say("clCreateBuffer", code);
    void *host = malloc(bytes);
    code = 1;
    clCreateBuffer(context, CL_MEM_USE_HOST_PTR, bytes, host, &code);
    say("clCreateBuffer,USE_HOST_PTR", code);
    free(host);
    code = 1;
    clCreateBuffer(context, CL_MEM_ALLOC_HOST_PTR, bytes, NULL, &code);
    say("clCreateBuffer,ALLOC_HOST_PTR", code);
    code = 1;
    clCreateBufferWithProperties(context, NULL, CL_MEM_READ_WRITE, bytes, NULL, &code);
    say("clCreateBufferWithProperties", code);
    cl_image_format format = {CL_RGBA, CL_FLOAT};
    size_t side = 4096, layers = bytes / (side * side * 16);
    cl_image_desc image = {CL_MEM_OBJECT_IMAGE2D_ARRAY, side, side, 0, layers, 0, 0, 0, 0, {NULL}};
    code = 1;
    clCreateImage(context, CL_MEM_READ_WRITE, &format, &image, NULL, &code);
    say("clCreateImage", code);
    code = 1;
    clCreateImageWithProperties(context, NULL, CL_MEM_READ_WRITE, &format, &image, NULL, &code);
    say("clCreateImageWithProperties", code);
    code = 1;
    clCreateImage2D(context, CL_MEM_READ_WRITE, &format, 8192 * 2, bytes / (8192 * 2 * 16), 0, NULL, &code);
    say("clCreateImage2D", code);
    code = 1;
    clCreateImage3D(context, CL_MEM_READ_WRITE, &format, 512, 512, bytes / (512 * 512 * 16), 0, 0, NULL, &code);
    say("clCreateImage3D", code);
    code = 1;
    clCreatePipe(context, CL_MEM_READ_WRITE, 1024, bytes / 1024, NULL, &code);
    say("clCreatePipe", code);
    say("clSVMAlloc", clSVMAlloc(context, CL_MEM_READ_WRITE, bytes, 0) != NULL);
    code = 1;
    clCreateBuffer(context, CL_MEM_READ_WRITE, SIZE_MAX, NULL, &code);
    say("hostile", code);
    cl_image_desc hostile = {CL_MEM_OBJECT_IMAGE3D, SIZE_MAX, SIZE_MAX, SIZE_MAX, 1, 0, 0, 0, 0, {NULL}};
    code = 1;
    clCreateImage(context, CL_MEM_READ_WRITE, &format, &hostile, NULL, &code);
    say("hostile,image", code);
    code = 1;
    clCreateBuffer(NULL, CL_MEM_READ_WRITE, 64, NULL, &code);
    say("no,context", code);
    say("no,queue", clEnqueueNDRangeKernel(NULL, NULL, 1, NULL, &side, NULL, 0, NULL, NULL));
    code = 1;
    clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, &code);
    say("empty", code);
    say("after,all", fits(bytes / 2));
}

/* Until when an object's memory is charged; the slice has `bytes`. */
static void lifetimes(size_t bytes) {
    cl_int code;
    begin();
    size_t most = bytes - bytes / 8;
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, most, NULL, &code);
    must(code, "buffer");
    say("beside", fits(most));
    clRetainMemObject(buffer);
    clReleaseMemObject(buffer);
    say("retained", fits(most));
    cl_buffer_region region = {0, most / 2};
    cl_mem part = clCreateSubBuffer(buffer, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    must(code, "part");
    say("part,costs", !fits(bytes / 16));
    clReleaseMemObject(buffer);
    say("part,keeps", !fits(most));
    clReleaseMemObject(part);
    until_fits("part,gone", most);

    /* A command that waits keeps its buffer. */
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, most, NULL, &code);
    must(code, "buffer");
    cl_event go = clCreateUserEvent(context, &code);
    must(code, "event");
    cl_uint zero = 0;
    must(clEnqueueFillBuffer(queue, buffer, &zero, sizeof zero, 0, 4096, 1, &go, NULL), "fill");
    clReleaseMemObject(buffer);
    usleep(50000);
    say("command,keeps", !fits(most));
    must(clSetUserEventStatus(go, CL_COMPLETE), "go");
    must(clFinish(queue), "finish");
    until_fits("command,done", most);

    /* Images over buffers cost nothing; images by themselves do. */
    cl_image_format format = {CL_RGBA, CL_FLOAT};
    cl_image_desc image = {CL_MEM_OBJECT_IMAGE2D, 8192, most / 8192 / 16, 0, 0, 0, 0, 0, 0, {NULL}};
    cl_mem pixels = clCreateImage(context, CL_MEM_READ_WRITE, &format, &image, NULL, &code);
    say("image", code);
    say("image,charged", !fits(most));
    if (pixels) clReleaseMemObject(pixels);
    until_fits("image,gone", most);

    void *shared = clSVMAlloc(context, CL_MEM_READ_WRITE, most, 0);
    say("svm", shared != NULL);
    say("svm,charged", shared == NULL || !fits(most));
    /* No driver frees it for another context. */
    cl_context other = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    must(code, "other");
    clSVMFree(other, shared);
    say("svm,other", shared == NULL || !fits(most));
    clReleaseContext(other);
    clSVMFree(context, shared);
    say("svm,gone", fits(most));
    shared = clSVMAlloc(context, CL_MEM_READ_WRITE, most, 0);
    if (shared) {
        must(clEnqueueSVMFree(queue, 1, &shared, NULL, NULL, 0, NULL, NULL), "free");
        must(clFinish(queue), "finish");
    }
    until_fits("svm,freed", most);

    /* A forked child has no slice of its own, and gets no memory past it. What it releases is its parent's still. */
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, most, NULL, &code);
    must(code, "buffer");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        clReleaseMemObject(buffer);
        clReleaseCommandQueue(queue);
        cl_int refused = 0;
        cl_mem more = clCreateBuffer(context, CL_MEM_READ_WRITE, 64, NULL, &refused);
        _exit(more == NULL && refused != CL_SUCCESS ? 7 : 8);
    }
    int status = 0;
    waitpid(child, &status, 0);
    say("child", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    say("parent,keeps", !fits(most));
    clReleaseMemObject(buffer);
    until_fits("parent", most);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    begin();
    say("again", fits(most));
}

static const char *SPIN =
    "kernel void spin(global float *out, int rounds) {"
    "  float x = get_global_id(0);"
    "  for (int n = 0; n < rounds; n++) x = x * 1.0000001f + 0.5f;"
    "  out[get_global_id(0)] = x; }";

/* Launches kernels of some milliseconds, `ahead` of them at once, until standard input ends. Says how many are over each
   time it reads a line. */
static volatile long done;

static void *reader(void *nothing) {
    char line[64];
    while (fgets(line, sizeof line, stdin)) say("done", done);
    exit(0);
    return nothing;
}

static cl_kernel spinning(void) {
    cl_int code;
    cl_kernel kernel = build(SPIN, "spin");
    size_t items = 4096;
    int rounds = 1000;
    cl_mem out = clCreateBuffer(context, CL_MEM_READ_WRITE, items * sizeof(float), NULL, &code);
    must(code, "out");
    must(clSetKernelArg(kernel, 0, sizeof out, &out), "argument");
    must(clSetKernelArg(kernel, 1, sizeof rounds, &rounds), "argument");
    return kernel;
}

/* Launches the next kernel when the driver calls back that one is over. */
static cl_kernel chained;

static void CL_CALLBACK next(cl_event over, cl_int status, void *nothing) {
    size_t items = 4096;
    cl_event event;
    clReleaseEvent(over);
    done += status == CL_COMPLETE;
    must(clEnqueueNDRangeKernel(queue, chained, 1, NULL, &items, NULL, 0, NULL, &event), "launch");
    must(clSetEventCallback(event, CL_COMPLETE, next, NULL), "callback");
    must(clFlush(queue), "flush");
}

static void chain(void) {
    size_t items = 4096;
    cl_event event;
    begin();
    chained = spinning();
    must(clEnqueueNDRangeKernel(queue, chained, 1, NULL, &items, NULL, 0, NULL, &event), "launch");
    must(clSetEventCallback(event, CL_COMPLETE, next, NULL), "callback");
    must(clFlush(queue), "flush");
    say("rounds", 1000);
    char line[64];
    while (fgets(line, sizeof line, stdin)) say("done", done);
    _exit(0);
}

/* Queues that live for one launch, in four threads. */
static void *churning(void *kernel) {
    size_t items = 4096;
    cl_int code;
    for (int n = 0; n < 60; n++) {
        cl_command_queue own = clCreateCommandQueue(context, device, 0, &code);
        must(code, "queue");
        must(clRetainCommandQueue(own), "retain");
        must(clReleaseCommandQueue(own), "release");
        must(clEnqueueNDRangeKernel(own, kernel, 1, NULL, &items, NULL, 0, NULL, NULL), "launch");
        must(clFinish(own), "finish");
        must(clReleaseCommandQueue(own), "release");
    }
    return NULL;
}

static void churn(void) {
    begin();
    cl_kernel kernel = spinning();
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) pthread_create(&threads[n], NULL, churning, kernel);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    say("churned", 4 * 60);
}

static void spin(double ms, int ahead, int out_of_order) {
    cl_int code;
    begin();
    if (out_of_order) {
        queue = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
        must(code, "queue");
    }
    cl_kernel kernel = build(SPIN, "spin");
    size_t items = 4096;
    cl_mem out = clCreateBuffer(context, CL_MEM_READ_WRITE, items * sizeof(float), NULL, &code);
    must(code, "out");
    int rounds = getenv("ROUNDS") ? atoi(getenv("ROUNDS")) : 1000;
    must(clSetKernelArg(kernel, 0, sizeof out, &out), "argument");
    must(clSetKernelArg(kernel, 1, sizeof rounds, &rounds), "argument");
    if (!getenv("ROUNDS")) {
        /* As many rounds as the milliseconds take here. */
        for (int n = 0; n < 3; n++) {
            double from = now();
            must(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL), "launch");
            must(clFinish(queue), "finish");
            double took = (now() - from) * 1e3;
            if (n > 0 && took > 0) rounds = rounds * (ms / took) + 1;
            must(clSetKernelArg(kernel, 1, sizeof rounds, &rounds), "argument");
        }
    }
    say("rounds", rounds);
    pthread_t thread;
    pthread_create(&thread, NULL, reader, NULL);
    for (;;) {
        for (int n = 0; n < ahead; n++)
            must(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL), "launch");
        must(clFinish(queue), "finish");
        done += ahead;
    }
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    size_t bytes = count > 2 ? strtoull(words[2], NULL, 0) * MIB : 0;
    if (!strcmp(what, "limits")) limits(bytes);
    else if (!strcmp(what, "lifetimes")) lifetimes(bytes);
    else if (!strcmp(what, "chain")) chain();
    else if (!strcmp(what, "churn")) churn();
    else if (!strcmp(what, "spin")) spin(atof(words[2]), atoi(words[3]), count > 4);
    else return 2;
    return 0;
}
