"""A PyOpenCL program: doubles a million numbers on the first device, and asks for more memory than a slice of 1 GiB has.

divvy run --device emulated:pocl --memory 1GiB -- python twice.py
"""

import numpy as np
import pyopencl as cl

SOURCE = """
kernel void twice(global const float *in, global float *out) {
    size_t me = get_global_id(0);
    out[me] = 2 * in[me];
}
"""

context = cl.Context(cl.get_platforms()[0].get_devices())
device = context.devices[0]
print(f"{device.platform.name}: {device.name}, {device.global_mem_size >> 20} MiB")

queue = cl.CommandQueue(context)
numbers = np.arange(1 << 20, dtype=np.float32)
flags = cl.mem_flags
given = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=numbers)
made = cl.Buffer(context, flags.WRITE_ONLY, numbers.nbytes)
program = cl.Program(context, SOURCE).build()
program.twice(queue, numbers.shape, None, given, made)
result = np.empty_like(numbers)
cl.enqueue_copy(queue, result, made)
print("right" if np.array_equal(result, 2 * numbers) else "WRONG")

try:
    cl.Buffer(context, flags.READ_WRITE, 2 << 30)
    print("2 GiB: there")
except cl.MemoryError:
    print("2 GiB: refused")
