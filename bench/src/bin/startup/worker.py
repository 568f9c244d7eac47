"""A worker of the bench: from a fresh interpreter to its first allocation on the driver that it is given."""

import ctypes
import sys

sys.stdin.read()
cuda = ctypes.CDLL(sys.argv[1])
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
for result in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)),
    cuda.cuMemFree_v2(pointer),
):
    if result != 0:
        sys.exit(f"error {result}")
