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
