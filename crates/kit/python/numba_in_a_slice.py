"""numba-cuda in a slice of 4 GiB."""

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

import numba
from said import LIMIT, is_look, is_loop, is_small, loop, promise, refuses, version



@cuda.jit
def congruential(values, results, rounds):
    at = cuda.grid(1)
    if at < values.size:
        value = values[at]
        for _ in range(rounds):
            value = numpy.uint32(value * numpy.uint32(1664525) + numpy.uint32(1013904223))
        results[at] = value


def side_by_side():
    count, rounds = (1 << 10, 100) if is_small() else (1 << 20, 20000)
    values = numpy.arange(count, dtype=numpy.uint32)
    given, results = cuda.to_device(values), cuda.device_array_like(values)

    def right():
        wanted = values[:64].copy()
        for _ in range(rounds):
            wanted = wanted * numpy.uint32(1664525) + numpy.uint32(1013904223)
        return (results.copy_to_host()[:64] == wanted).all()

    loop(lambda: congruential[count // 256, 256](given, results, rounds), cuda.synchronize, right)


if is_look():
    congruential[1, 8](numpy.arange(8, dtype=numpy.uint32), cuda.device_array(8, dtype=numpy.uint32), 1)
    cuda.synchronize()
    raise SystemExit
if is_loop():
    side_by_side()
    raise SystemExit

version(numba)
context = cuda.current_context()
free, total = context.get_memory_info()
promise("total", total == LIMIT, "the slice is all the memory that numba sees", bytes=total)


@cuda.jit
def twice(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] *= 2


values = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float32))
twice[4096, 256](values)
right = (values.copy_to_host() == numpy.arange(1 << 20, dtype=numpy.float32) * 2).all()
promise("computes", right, "a kernel computes the right numbers")

held = []


def too_much():
    for _ in range(80):
        held.append(cuda.device_array(64 << 20, dtype=numpy.uint8))


refuses("refused", too_much, CudaAPIError, lambda error: "MEMORY" in str(error))
held.clear()
twice[4096, 256](values)
cuda.synchronize()
promise("goes_on", True, "it goes on after a refusal")
