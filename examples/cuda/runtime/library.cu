// The driver's own functions, and device code that the program loads itself.
#include "check.h"

static const char *CODE = R"(.version 7.0
.target sm_75
.address_size 64
.global .align 4 .u32 seven = 7;
.visible .entry twice(.param .u64 to, .param .u32 x) {
    .reg .u64 %a;
    .reg .u32 %x, %s;
    ld.param.u64 %a, [to];
    ld.param.u32 %x, [x];
    ld.global.u32 %s, [seven];
    mad.lo.u32 %x, %x, 2, %s;
    st.global.u32 [%a], %x;
    ret;
})";

int main() {
    cudaLibrary_t library;
    OK(cudaLibraryLoadData(&library, CODE, nullptr, nullptr, 0, nullptr, nullptr, 0));
    cudaKernel_t kernel;
    OK(cudaLibraryGetKernel(&kernel, library, "twice"));
    unsigned count = 0;
    OK(cudaLibraryGetKernelCount(&count, library));
    HOLDS(count == 1);
    unsigned *seven;
    std::size_t size;
    OK(cudaLibraryGetGlobal((void **)&seven, &size, library, "seven"));
    HOLDS(size == 4);
    Buffer<unsigned> out(1);
    unsigned x = 20;
    void *arguments[] = {&out.at, &x};
    OK(cudaLaunchKernel((void *)kernel, dim3(1), dim3(1), arguments, 0, nullptr));
    HOLDS(out.read()[0] == 47);
    unsigned eight = 8;
    OK(cudaMemcpy(seven, &eight, sizeof eight, cudaMemcpyHostToDevice));
    OK(cudaLaunchKernel((void *)kernel, dim3(1), dim3(1), arguments, 0, nullptr));
    HOLDS(out.read()[0] == 48);
    ANSWERS(cudaErrorSymbolNotFound, cudaLibraryGetKernel(&kernel, library, "thrice"));
    OK(cudaLibraryUnload(library));

    int (*version)(int *) = nullptr;
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuDriverGetVersion", (void **)&version, 12000, cudaEnableDefault, &found));
    HOLDS(found == cudaDriverEntryPointSuccess && version != nullptr);
    int number = 0;
    HOLDS(version(&number) == 0 && number >= 12000);
    void *missing = &number;
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &missing, 12000, cudaEnableDefault, &found));
    HOLDS(found == cudaDriverEntryPointSymbolNotFound && missing == nullptr);
    cudaGetLastError();
    return 0;
}
