"""JAX in a slice of 4 GiB: what it takes before the first number is inside the slice."""

import jax
import jax.numpy as numpy
from said import LIMIT, fact, is_look, is_loop, loop, promise, version


def side_by_side():
    values = numpy.ones((4096, 4096), dtype=numpy.float32)
    square = jax.jit(lambda matrix: matrix @ matrix)
    last = [square(values)]

    def step():
        last[0] = square(values)

    loop(step, lambda: last[0].block_until_ready(), lambda: (last[0] == 4096).all())


if is_look():
    platform = jax.devices()[0].platform
    if platform not in ("gpu", "cuda"):
        raise SystemExit(f"JAX computes on {platform}")
    raise SystemExit(float(numpy.ones(8).sum()) != 8)
if is_loop():
    side_by_side()
    raise SystemExit

version(jax)
device = jax.devices()[0]
promise("device", device.platform in ("gpu", "cuda"), f"JAX computes on {device.platform}")
stats = device.memory_stats() or {}
taken = stats.get("bytes_limit", 0)
promise("preallocated", 0 < taken <= LIMIT, "what JAX takes before the first number is inside the slice", bytes=taken)
values = numpy.arange(1 << 20, dtype=numpy.float32)
promise("computes", bool((values * 2 == values + values).all()), "a kernel computes the right numbers")
try:
    # More than the slice, at once.
    numpy.ones((5 << 30,), dtype=numpy.uint8).block_until_ready()
except Exception as error:  # noqa: BLE001 - XLA's own class moves between versions
    refused = "RESOURCE_EXHAUSTED" in str(error)
    promise("refused", refused, f"refused with {type(error).__name__}", **({} if refused else {"said": str(error)[:200]}))
else:
    promise("refused", False, "more than the slice has was given out")
fact("goes_on", f"it goes on after a refusal: {float(numpy.ones(10).sum())}")
