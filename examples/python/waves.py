"""Waves on a square of water, simulated with Taichi and checked against NumPy.

An ordinary Taichi program: it knows nothing of Divvy. Exit code 0 when the water is what NumPy computes, 1 otherwise.
"""

import argparse
import sys

import numpy as np
import taichi as ti


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="cells of a side")
    parser.add_argument("--steps", type=int, default=100, help="steps of time")
    arguments = parser.parse_args()
    size, speed = arguments.size, 0.2
    ti.init(arch=ti.cuda, log_level=ti.WARN, offline_cache=False, device_memory_GB=0.25)
    if ti.cfg.arch != ti.cuda:
        sys.exit("Taichi found no CUDA device")
    height = ti.field(ti.f32, (size, size))
    before = ti.field(ti.f32, (size, size))
    after = ti.field(ti.f32, (size, size))

    @ti.kernel
    def step():
        for i, j in height:
            if 0 < i < size - 1 and 0 < j < size - 1:
                around = height[i - 1, j] + height[i + 1, j] + height[i, j - 1] + height[i, j + 1]
                after[i, j] = 2 * height[i, j] - before[i, j] + speed * (around - 4 * height[i, j])

    @ti.kernel
    def pass_on():
        for i, j in height:
            before[i, j] = height[i, j]
            height[i, j] = after[i, j]

    @ti.kernel
    def total() -> ti.f32:
        sum = 0.0
        for i, j in height:
            sum += height[i, j] ** 2
        return sum

    cells = np.arange(size) - size / 3
    start = np.exp(-(cells[:, None] ** 2 + cells[None, :] ** 2) / 50).astype(np.float32)
    height.from_numpy(start)
    before.from_numpy(start)
    now, last = start.astype(np.float64), start.astype(np.float64)
    for _ in range(arguments.steps):
        step()
        pass_on()
        next = np.zeros_like(now)
        around = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]
        next[1:-1, 1:-1] = 2 * now[1:-1, 1:-1] - last[1:-1, 1:-1] + speed * (around - 4 * now[1:-1, 1:-1])
        last, now = now, next
    off = np.abs(height.to_numpy() - now).max()
    sum_off = abs(total() - (now**2).sum())
    print(f"{arguments.steps} steps: off by {off:.1e}, the sum of squares by {sum_off:.1e}")
    right = off < 1e-3 and sum_off < 1e-2
    print("the water is right" if right else "the water is WRONG")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
