"""A numba kernel and cuda-core's graphs: one step captured once and launched many times, checked against NumPy.

An ordinary program over numba-cuda and cuda-core: it knows nothing of Divvy. Exit code 0 when every way of running
the steps gives the same numbers, 1 otherwise.
"""

import argparse
import sys

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from cuda.core.graph import GraphBuilder, GraphDefinition
from numba import cuda

SOURCE = """
extern "C" __global__ void decay(float *values, float factor, unsigned count)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = values[i] * factor + 1.0f;
}
"""
FACTOR = np.float32(0.5)


@cuda.jit
def decay(values, factor):
    i = cuda.grid(1)
    if i < values.shape[0]:
        values[i] = values[i] * factor + np.float32(1)


def in_numpy(values, steps):
    values = values.copy()
    for _ in range(steps):
        values = values * FACTOR + np.float32(1)
    return values


def check(result):
    if isinstance(result, tuple):
        result, *rest = result
    else:
        rest = []
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(result)
    return rest[0] if len(rest) == 1 else rest


def captured_numba(start, steps):
    """numba's own launches, captured through the driver API and launched again and again."""
    values = cuda.to_device(start)
    decay[8, 64](values, FACTOR)  # compiled before the capture: loading a module is not for captures
    values.copy_to_device(start)
    stream = cuda.stream()
    handle = driver.CUstream(int(stream.handle))
    cuda.synchronize()
    check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    decay[8, 64, stream](values, FACTOR)
    graph = check(driver.cuStreamEndCapture(handle))
    executable = check(driver.cuGraphInstantiate(graph, 0))
    for _ in range(steps):
        check(driver.cuGraphLaunch(executable, handle))
    check(driver.cuStreamSynchronize(handle))
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(graph))
    return values.copy_to_host()


def compiled():
    return Program(SOURCE, "c++", options=ProgramOptions(arch="sm_75")).compile("ptx").get_kernel("decay")


def built_with_cuda_core(start, steps):
    """cuda-core's graph builder: two branches, joined, on memory of its own."""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    kernel = compiled()
    half = len(start) // 2
    memory = device.allocate(start.nbytes, stream=stream)
    stream.sync()
    check(driver.cuMemcpyHtoD(int(memory.handle), start.ctypes.data, start.nbytes))
    config = LaunchConfig(grid=8, block=64)
    builder = device.create_graph_builder().begin_building()
    left, right = builder.split(2)
    launch(left, config, kernel, int(memory.handle), FACTOR, np.uint32(half))
    launch(right, config, kernel, int(memory.handle) + 4 * half, FACTOR, np.uint32(len(start) - half))
    builder = GraphBuilder.join(left, right).end_building()
    graph = builder.complete()
    graph.upload(stream)
    for _ in range(steps):
        graph.launch(stream)
    stream.sync()
    result = np.empty_like(start)
    check(driver.cuMemcpyDtoH(result.ctypes.data, int(memory.handle), start.nbytes))
    return result


def defined_node_by_node(start, steps):
    """Explicit nodes: memory that lives only inside the graph, and a call back into Python."""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    kernel, calls = compiled(), []
    config = LaunchConfig(grid=8, block=64)
    memory = device.allocate(start.nbytes, stream=stream)
    stream.sync()
    kept = int(memory.handle)
    check(driver.cuMemcpyHtoD(kept, start.ctypes.data, start.nbytes))
    graph = GraphDefinition()
    inner = graph.allocate(start.nbytes)
    step = inner.memcpy(inner.dptr, kept, start.nbytes)
    step = step.launch(config, kernel, inner.dptr, FACTOR, np.uint32(len(start)))
    step = step.memcpy(kept, inner.dptr, start.nbytes)
    step = step.deallocate(inner.dptr)
    step.callback(lambda: calls.append(1))
    executable = graph.instantiate()
    for _ in range(steps):
        executable.launch(stream)
    stream.sync()
    result = np.empty_like(start)
    check(driver.cuMemcpyDtoH(result.ctypes.data, kept, start.nbytes))
    assert len(calls) == steps, f"{len(calls)} calls"
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    start = np.linspace(-100, 100, 500, dtype=np.float32)
    expected = in_numpy(start, arguments.steps)
    right = True
    for way in [captured_numba, built_with_cuda_core, defined_node_by_node]:
        same = np.allclose(way(start, arguments.steps), expected, rtol=1e-6)
        right = right and same
        print(f"{way.__name__}: {arguments.steps} launches, {'right' if same else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
