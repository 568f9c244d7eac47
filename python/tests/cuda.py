"""CUDA's driver by its C functions: quick to load, where a program need not compile a kernel."""

from __future__ import annotations

import ctypes

NOT_READY = 802
OUT_OF_MEMORY = 2


def driver() -> ctypes.CDLL:
    """The driver that this process has."""
    return ctypes.CDLL("libcuda.so.1")


def start() -> int:
    """What cuInit answers. Makes device 0's context the current one where that is 0."""
    cuda = driver()
    status = int(cuda.cuInit(0))
    if status == 0:
        context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
    return status


def total() -> int:
    """Bytes of memory of device 0, as this process sees it."""
    bytes_ = ctypes.c_size_t()
    assert driver().cuDeviceTotalMem_v2(ctypes.byref(bytes_), 0) == 0
    return bytes_.value


def allocate(size: int) -> int:
    """What cuMemAlloc answers. The memory stays."""
    return int(driver().cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)))


#: Doubles 256 numbers.
_DOUBLE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry twice(.param .u64 values)
{
    .reg .u32 %r<3>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd0, [values];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r1, [%rd2];
    add.u32 %r1, %r1, %r1;
    st.global.u32 [%rd2], %r1;
    ret;
}
"""


def doubled() -> int:
    """Doubles 256 ones on the device. Returns their sum."""
    cuda = driver()
    module, function, place = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    values = (ctypes.c_uint32 * 256)(*[1] * 256)
    size = ctypes.c_size_t(ctypes.sizeof(values))
    assert cuda.cuModuleLoadData(ctypes.byref(module), _DOUBLE) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"twice") == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(place), size) == 0
    assert cuda.cuMemcpyHtoD_v2(place, values, size) == 0
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, None, parameters, None) == 0
    assert cuda.cuMemcpyDtoH_v2(values, place, size) == 0
    assert cuda.cuMemFree_v2(place) == 0
    return sum(values)
