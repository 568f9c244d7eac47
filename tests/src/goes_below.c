/* A program of a container that has the limiter in it, and takes memory of the driver below by that one's path. */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    void *below = dlopen("/run/divvy/below/libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    int (*init)(unsigned) = dlsym(below, "cuInit");
    int (*retain)(void **, int) = dlsym(below, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(below, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, unsigned long) = dlsym(below, "cuMemAlloc_v2");
    unsigned long long memory;
    int failed = init(0) | retain(&context, 0) | set(context) | allocate(&memory, 3ul << 30);
    printf("took it: %d\n", !failed);
    fflush(stdout);
    sleep(600);
    return 0;
}
