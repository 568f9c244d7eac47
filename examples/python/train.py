"""Fits a line to points on the device: a training program in small, with nothing but Python and the CUDA driver.

It knows nothing of Divvy. Each step is a kernel over all points, which adds up the gradient. Exit code 0 when the line is
the one that the points were made of.
"""

import argparse
import ctypes
import struct
import sys
import time

POINTS = 4096
SLOPE, OFFSET = 3.0, -1.0

# Each thread adds its point's part of the gradient: of the slope at `out`, of the offset behind it.
KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry gradient(.param .u64 points, .param .u64 out, .param .u32 count, .param .f32 slope, .param .f32 offset)
{
    .reg .pred %p;
    .reg .u32 %thread, %block, %threads, %i, %n;
    .reg .u64 %in, %to, %byte;
    .reg .f32 %x, %y, %a, %b, %error, %old;
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    ld.param.u32 %n, [count];
    setp.ge.u32 %p, %i, %n;
    @%p bra DONE;
    ld.param.u64 %in, [points];
    mul.wide.u32 %byte, %i, 8;
    add.u64 %in, %in, %byte;
    ld.global.f32 %x, [%in];
    ld.global.f32 %y, [%in+4];
    ld.param.f32 %a, [slope];
    ld.param.f32 %b, [offset];
    fma.rn.f32 %error, %a, %x, %b;
    sub.f32 %error, %error, %y;
    ld.param.u64 %to, [out];
    atom.global.add.f32 %old, [%to+4], %error;
    mul.f32 %error, %error, %x;
    atom.global.add.f32 %old, [%to], %error;
DONE:
    ret;
}
"""


def checked(code, what):
    """CUDA's own words for an error, as exceptions have them."""
    if code:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(name))
        sys.exit(f"{what}: {(name.value or str(code).encode()).decode()}")


def allocated(size):
    pointer = ctypes.c_uint64()
    checked(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), f"{size >> 20} MiB of device memory")
    return pointer


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--mib", type=int, default=256, help="device memory to hold while it trains")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--seconds", type=float, default=0, help="go on for so long at least")
arguments = parser.parse_args()

cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
checked(cuda.cuInit(0), "the driver")
checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "a context")
checked(cuda.cuCtxSetCurrent(context), "a context")
checked(cuda.cuModuleLoadData(ctypes.byref(module), KERNEL), "the kernel")
checked(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"gradient"), "the kernel")

points = [(at / POINTS, SLOPE * at / POINTS + OFFSET) for at in range(POINTS)]
packed = struct.pack(f"{2 * POINTS}f", *(value for point in points for value in point))
held = allocated(max(arguments.mib << 20, len(packed) + 8))
gradient = ctypes.c_uint64(held.value + len(packed))
checked(cuda.cuMemcpyHtoD_v2(held, packed, ctypes.c_size_t(len(packed))), "a copy")

slope, offset = ctypes.c_float(0), ctypes.c_float(0)
count = ctypes.c_uint32(POINTS)
values = [held, gradient, count, slope, offset]
pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values))
sums = (ctypes.c_float * 2)()
# Momentum: the line is found in fewer steps.
moving = [0.0, 0.0]
begun, step = time.monotonic(), 0
while step < arguments.steps or time.monotonic() - begun < arguments.seconds:
    checked(cuda.cuMemsetD8_v2(gradient, 0, ctypes.c_size_t(8)), "a memset")
    checked(cuda.cuLaunchKernel(function, POINTS // 128, 1, 1, 128, 1, 1, 0, None, pointers, None), "a launch")
    checked(cuda.cuMemcpyDtoH_v2(sums, gradient, ctypes.c_size_t(8)), "a copy")
    for at, value in enumerate((slope, offset)):
        moving[at] = 0.8 * moving[at] - 0.5 * sums[at] / POINTS
        value.value += moving[at]
    step += 1

print(f"after {step} steps: y = {slope.value:.2f} x + {offset.value:.2f}")
sys.exit(abs(slope.value - SLOPE) > 0.05 or abs(offset.value - OFFSET) > 0.05)
