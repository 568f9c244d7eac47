// nvrtc: --gpu-architecture=compute_80
// What compilers make of ordinary C++: switches, calls through pointers, local arrays, 64-bit division, double maths,
// printf, structures by value, bytes and shorts, spin locks.
extern "C" __global__ void switches(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = in[i], r;
    switch (v) {
    case 0: r = 17; break;
    case 1: r = v * 3 + i; break;
    case 2: r = i * i; // falls through
    case 3: r = i - 5; break;
    case 4: for (r = 0; r * r < i; r++) {} break;
    case 5: r = i ^ 0x55; break;
    case 6: r = i / 3; break;
    case 7: r = i % 7; break;
    default: r = -v;
    }
    out[i] = r;
}

static __device__ __noinline__ int twice(int v) { return 2 * v; }
static __device__ __noinline__ int square(int v) { return v * v; }
static __device__ __noinline__ int negate(int v) { return -v; }
typedef int (*function)(int);
__device__ function table[3] = {twice, square, negate};

extern "C" __global__ void pointers(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table[in[i] % 3](i);
}

extern "C" __global__ void insertion_sort(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int mine[16];
    for (int k = 0; k < 16; k++) {
        int v = in[i * 16 + k], at = k;
        for (; at > 0 && mine[at - 1] > v; at--) mine[at] = mine[at - 1];
        mine[at] = v;
    }
    for (int k = 0; k < 16; k++) out[i * 16 + k] = mine[k];
}

extern "C" __global__ void divisions(const long long *a, const long long *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[4 * i] = a[i] / b[i];
    out[4 * i + 1] = a[i] % b[i];
    out[4 * i + 2] = (unsigned long long)a[i] / (unsigned long long)b[i];
    out[4 * i + 3] = (unsigned long long)a[i] % (unsigned long long)b[i];
}

extern "C" __global__ void maths(const double *in, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = in[i];
    out[8 * i] = sin(x);
    out[8 * i + 1] = exp(x * 0.01);
    out[8 * i + 2] = log(fabs(x) + 1.0);
    out[8 * i + 3] = pow(fabs(x), 0.3);
    out[8 * i + 4] = tan(x);
    out[8 * i + 5] = floor(x) + ceil(x * 0.5) + rint(x * 0.25);
    out[8 * i + 6] = fmod(x, 3.7);
    out[8 * i + 7] = 1.0 / cbrt(fabs(x) + 2.0);
}

extern "C" __global__ void maths_single(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = in[i];
    out[8 * i] = sinf(x);
    out[8 * i + 1] = expf(x * 0.01f);
    out[8 * i + 2] = logf(fabsf(x) + 1.0f);
    out[8 * i + 3] = powf(fabsf(x), 0.3f);
    out[8 * i + 4] = cosf(x);
    out[8 * i + 5] = floorf(x) + ceilf(x * 0.5f) + rintf(x * 0.25f);
    out[8 * i + 6] = fmodf(x, 3.7f);
    out[8 * i + 7] = atan2f(x, 1.5f);
}

struct Pair { short low; unsigned char flag; long long high; };
extern "C" __global__ void structures(Pair pair, Pair *out, unsigned char *bytes) {
    int i = threadIdx.x;
    Pair mine = pair;
    mine.low = (short)(mine.low * i);
    mine.flag += (unsigned char)i;
    mine.high -= i;
    out[i] = mine;
    bytes[i] = (unsigned char)((signed char)(i * 9) >> 1);
}

__device__ int lock;
__device__ int guarded;
extern "C" __global__ void spin_lock(int rounds) {
    for (int r = 0; r < rounds; r++) {
        bool done = false;
        while (!done) {
            if (atomicCAS(&lock, 0, 1) == 0) {
                __threadfence();
                *(volatile int *)&guarded += 1;
                __threadfence();
                atomicExch(&lock, 0);
                done = true;
            }
        }
    }
}

extern "C" __global__ void naive_lock(int *counter) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    *(volatile int *)counter += 1;
    __threadfence();
    atomicExch(&lock, 0);
}

extern "C" __global__ void says_hello(int number) {
    if (threadIdx.x < 2) printf("thread %d of block %d: %d %.3f %s\n", threadIdx.x, blockIdx.x, number, 1.5 * number, "ok");
}
