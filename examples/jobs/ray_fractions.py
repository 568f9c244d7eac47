"""Ray's fractional GPUs, as its documentation has them, with limits that hold: one line is Divvy's.

    ray_fractions.py [ADDRESS]

Each node is started with the plugin (docs/ray.md).
"""

import sys

import ray

import divvy_jobs.ray

ray.init(
    address=sys.argv[1] if len(sys.argv) > 1 else "auto",
    runtime_env=divvy_jobs.ray.runtime_env(),  # Without this line the fractions are for placement only.
)


@ray.remote(num_cpus=0, num_gpus=0.25)
class FractionalGPUActor:
    def ping(self) -> list[str]:
        ids: list[str] = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return ids

    def memory(self) -> int:
        from numba import cuda

        return int(cuda.current_context().get_memory_info().total)


@ray.remote(num_gpus=0.5)
def add(count: int) -> float:
    import numpy
    from numba import cuda

    @cuda.jit
    def double(values):  # type: ignore[no-untyped-def]
        place = cuda.grid(1)
        if place < values.size:
            values[place] *= 2

    values = cuda.to_device(numpy.ones(count))
    double[(count + 255) // 256, 256](values)
    return float(values.copy_to_host().sum())


actors = [FractionalGPUActor.remote() for _ in range(2)]
print("on the devices", ray.get([actor.ping.remote() for actor in actors]))
print("each sees bytes", ray.get([actor.memory.remote() for actor in actors]))
print("and a task sums", ray.get(add.remote(1000)))
