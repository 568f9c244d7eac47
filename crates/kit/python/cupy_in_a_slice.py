"""CuPy in a slice of 4 GiB."""

import cupy
from said import LIMIT, promise, refuses, version

version(cupy)
free, total = cupy.cuda.runtime.memGetInfo()
promise("total", total == LIMIT, "the slice is all the memory that CuPy sees", bytes=total)
values = cupy.arange(1 << 20, dtype=cupy.float32)
promise("computes", bool((values * 2 == values + values).all()), "a kernel computes the right numbers")

held = []


def too_much():
    for _ in range(80):
        held.append(cupy.empty(64 << 20, dtype=cupy.uint8))


refuses("refused", too_much, cupy.cuda.memory.OutOfMemoryError, lambda error: True)
held.clear()
cupy.get_default_memory_pool().free_all_blocks()

pool = cupy.cuda.MemoryAsyncPool()
with cupy.cuda.using_allocator(pool.malloc):
    refuses("async.refused", too_much, (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError), lambda error: True)
    held.clear()
promise("goes_on", int(cupy.ones(10).sum()) == 10, "it goes on after a refusal")
