"""CuPy in a slice of 4 GiB."""

import cupy
from said import LIMIT, is_look, is_loop, loop, promise, refuses, version


def side_by_side():
    values = cupy.ones((4096, 4096), dtype=cupy.float32)
    result = cupy.empty_like(values)
    loop(
        lambda: cupy.matmul(values, values, out=result),
        cupy.cuda.runtime.deviceSynchronize,
        lambda: (result == 4096).all(),
    )


if is_look():
    raise SystemExit(int(cupy.ones(8).sum()) != 8)
if is_loop():
    side_by_side()
    raise SystemExit

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
