/* Loaded before all other libraries, this plants one fault into a program of the kit: FAULT names it. The name of a function of the
   driver: calls of it go past the limiter to the driver's library, FAULT_DRIVER, as with a limiter that has forgotten it. Other
   words have the driver compute something else, or have NVML tell of another card. Tests build it; no archive has it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *real_dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real(handle, name);
}

/* As many words as any of these functions takes: cuIpcOpenMemHandle takes 64 bytes by value. */
typedef int (*any)(long, long, long, long, long, long, long, long, long, long, long, long, long, long);

static any past_the_limiter(const char *name) {
    void *driver = dlopen(getenv("FAULT_DRIVER"), RTLD_NOW);
    any function = driver ? (any)real_dlsym(driver, name) : 0;
    if (!function)
        abort();
    return function;
}

#define HOLE(name)                                                                                                     \
    static int hole_##name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k,     \
                           long l, long m, long n) {                                                                   \
        static any function;                                                                                           \
        if (!function)                                                                                                 \
            function = past_the_limiter(#name);                                                                        \
        return function(a, b, c, d, e, f, g, h, i, j, k, l, m, n);                                                     \
    }
HOLE(cuMemAlloc_v2)
HOLE(cuMemAllocFromPoolAsync)
HOLE(cuMemCreate)
HOLE(cuGraphLaunch)
HOLE(cuIpcOpenMemHandle_v2)
HOLE(cuMemFree_v2)
HOLE(cuLaunchKernel)

static void *library;

/* Adds two where the text says one. */
static int wrong_sum(void **module, const char *image) {
    static const char right[] = "add.u32 %a, %a, 1;";
    int (*load)(void **, const char *) = (int (*)(void **, const char *))real_dlsym(library, "cuModuleLoadData");
    char *copy = strdup(image);
    char *at = copy ? strstr(copy, right) : 0;
    if (at)
        at[sizeof right - 3] = '2';
    int result = load(module, copy ? copy : image);
    free(copy);
    return result;
}

struct process {
    uint32_t pid;
    uint64_t bytes;
    uint32_t gpu_instance, compute_instance;
};

static int exclusive(void *device, uint32_t *mode) {
    *mode = 3;
    return 0;
}

static int mig(void *device, uint32_t *current, uint32_t *pending) {
    *current = *pending = 1;
    return 0;
}

static int errors(void *device, uint32_t kind, uint32_t counter, uint64_t *count) {
    *count = 7;
    return 0;
}

static int busy(void *device, uint32_t *count, struct process *processes) {
    *count = 1;
    processes[0] = (struct process){.pid = 1, .bytes = 1 << 30};
    return 0;
}

static const struct {
    const char *fault, *name;
    void *function;
} faults[] = {
    {"cuMemAlloc_v2", "cuMemAlloc_v2", hole_cuMemAlloc_v2},
    {"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", hole_cuMemAllocFromPoolAsync},
    {"cuMemCreate", "cuMemCreate", hole_cuMemCreate},
    {"cuGraphLaunch", "cuGraphLaunch", hole_cuGraphLaunch},
    {"cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle_v2", hole_cuIpcOpenMemHandle_v2},
    {"cuMemFree_v2", "cuMemFree_v2", hole_cuMemFree_v2},
    {"cuLaunchKernel", "cuLaunchKernel", hole_cuLaunchKernel},
    {"wrong sum", "cuModuleLoadData", wrong_sum},
    {"exclusive", "nvmlDeviceGetComputeMode", exclusive},
    {"mig", "nvmlDeviceGetMigMode", mig},
    {"errors", "nvmlDeviceGetTotalEccErrors", errors},
    {"busy", "nvmlDeviceGetComputeRunningProcesses_v3", busy},
};

void *dlsym(void *handle, const char *name) {
    const char *fault = getenv("FAULT");
    for (size_t at = 0; fault && at < sizeof faults / sizeof *faults; at++)
        if (!strcmp(fault, faults[at].fault) && !strcmp(name, faults[at].name)) {
            library = handle;
            return faults[at].function;
        }
    return real_dlsym(handle, name);
}
