// Times the bench's kernels on PoCL: `pocl KERNELS.cl ROUNDS SHRINK` prints a name and the median processor time of its
// rounds in seconds, a line each. The environment says how many processors PoCL uses.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static cl_context context;
static cl_command_queue queue;
static cl_program program;
static int rounds;

static void check(cl_int status, const char *what) {
    if (status == CL_SUCCESS) return;
    fprintf(stderr, "%s: OpenCL answers %d\n", what, status);
    exit(1);
}

static double spent(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static int earlier(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// A buffer of so many bytes: of floats between 0 and 1, or of bytes in no order.
static cl_mem buffer(size_t bytes, int floats) {
    cl_int status;
    cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &status);
    check(status, "clCreateBuffer");
    unsigned *words = malloc(bytes + 4), state = 0x9e3779b9u;
    for (size_t i = 0; i < bytes / 4 + 1; i++) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        float value = (state >> 8) / 16777216.0f;
        if (floats) memcpy(&words[i], &value, 4);
        else words[i] = state;
    }
    check(clEnqueueWriteBuffer(queue, made, CL_TRUE, 0, bytes, words, 0, NULL, NULL), "clEnqueueWriteBuffer");
    free(words);
    return made;
}

struct argument {
    size_t bytes;
    union {
        cl_mem memory;
        int number;
        float real;
        double wide;
    };
};

#define M(m) {sizeof(cl_mem), {.memory = (m)}}
#define I(n) {sizeof(int), {.number = (n)}}
#define F(x) {sizeof(float), {.real = (x)}}
#define D(x) {sizeof(double), {.wide = (x)}}

// `written` is filled again before each round, where there is one, from `fresh`.
static void run(const char *name, const char *function, const size_t *global, const size_t *local, int count,
                struct argument *arguments, cl_mem written, cl_mem fresh, size_t bytes) {
    cl_int status;
    cl_kernel kernel = clCreateKernel(program, function, &status);
    check(status, function);
    for (int i = 0; i < count; i++) check(clSetKernelArg(kernel, i, arguments[i].bytes, &arguments[i].memory), function);
    double times[rounds + 1];
    for (int i = 0; i <= rounds; i++) {
        if (written) check(clEnqueueCopyBuffer(queue, fresh, written, 0, 0, bytes, 0, NULL, NULL), "clEnqueueCopyBuffer");
        check(clFinish(queue), "clFinish");
        double begun = spent();
        check(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, global, local, 0, NULL, NULL), function);
        check(clFinish(queue), "clFinish");
        times[i] = spent() - begun;
    }
    // The first one compiles.
    qsort(times + 1, rounds, sizeof(double), earlier);
    printf("%s\t%.9f\n", name, times[1 + rounds / 2]);
    fflush(stdout);
}

#define RUN(name, function, g0, g1, l0, l1, written, fresh, bytes, ...)                                   \
    do {                                                                                                  \
        struct argument list[] = {__VA_ARGS__};                                                           \
        run(name, function, (size_t[]){g0, g1}, (size_t[]){l0, l1}, sizeof list / sizeof *list, list,      \
            written, fresh, bytes);                                                                       \
    } while (0)

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    rounds = atoi(argv[2]);
    size_t by = atoi(argv[3]);
    FILE *file = fopen(argv[1], "rb");
    if (!file) return 2;
    static char text[1 << 16];
    size_t length = fread(text, 1, sizeof text - 1, file);
    const char *source = text;
    cl_platform_id platforms[8], platform = NULL;
    cl_uint platform_count = 0;
    check(clGetPlatformIDs(8, platforms, &platform_count), "clGetPlatformIDs");
    for (cl_uint i = 0; i < platform_count && i < 8; i++) {
        char name[256] = "";
        clGetPlatformInfo(platforms[i], CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
        if (strstr(name, "Portable Computing")) platform = platforms[i];
    }
    cl_device_id device;
    cl_int status;
    if (!platform) return 3;
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_CPU, 1, &device, NULL), "clGetDeviceIDs");
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    check(status, "clCreateContext");
    queue = clCreateCommandQueue(context, device, 0, &status);
    check(status, "clCreateCommandQueue");
    program = clCreateProgramWithSource(context, 1, &source, &length, &status);
    check(status, "clCreateProgramWithSource");
    check(clBuildProgram(program, 1, &device, "-cl-fp32-correctly-rounded-divide-sqrt", NULL, NULL), "clBuildProgram");

    int n = (1 << 20) / by, many = (1 << 22) / by, side = 256 / by, bodies = 2048 / by, picture = 512 / by;
    int heat = 2048 / by, image = 1024 / by;
    cl_mem a = buffer(many * 4, 1), b = buffer(many * 4, 1), c = buffer(many * 4, 1), d = buffer(many * 4, 1);
    cl_mem e = buffer(many * 4, 1), words = buffer(many, 0), mixed = buffer(n * 4, 0), wide = buffer((size_t)n * 8, 1);
    RUN("saxpy", "saxpy", n, 1, 256, 1, NULL, NULL, 0, I(n), F(0.5f), M(a), M(b));
    RUN("matmul", "matmul", side, side, 16, 16, NULL, NULL, 0, I(side), M(a), M(b), M(c));
    RUN("n-body", "nbody", bodies, 1, 128, 1, NULL, NULL, 0, I(bodies), F(1e-3f), M(a), M(b), M(c));
    RUN("mandelbrot", "mandelbrot", picture, picture, 16, 16, NULL, NULL, 0, I(picture), F(-2.0f), F(-1.25f),
        F(2.5f / picture), I(256), M(c));
    RUN("sum", "sum", 1024 * 256, 1, 256, 1, NULL, NULL, 0, I(many), M(a), M(c));
    RUN("stencil", "heat", heat, heat, 32, 8, NULL, NULL, 0, I(heat), F(0.1f), M(a), M(c));
    RUN("histogram", "histogram", 64 * 256, 1, 256, 1, NULL, NULL, 0, I(many), M(words), M(c));
    RUN("options", "options", n, 1, 256, 1, NULL, NULL, 0, I(n), F(0.02f), F(0.3f), M(a), M(b), M(c), M(d), M(e));
    RUN("fma f64", "fma_f64", n, 1, 256, 1, NULL, NULL, 0, I(n), D(0.999), D(0.001), M(wide));
    RUN("fft", "fft", n / 2, 1, 512, 1, NULL, NULL, 0, M(a), M(b), M(c), M(d), M(a), M(b));
    RUN("sort", "sort", n / 2, 1, 512, 1, e, mixed, n * 4, M(e));
    RUN("conv2d", "conv2d", image, image, 32, 8, NULL, NULL, 0, I(image), M(a), M(b), M(c));
    return 0;
}
