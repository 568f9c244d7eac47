"""An image pipeline in Halide: a blur, an unsharp mask and a histogram, checked against NumPy.

An ordinary Halide program: it knows nothing of Divvy. Exit code 0 when the images are what NumPy computes, 1 otherwise.
"""

import argparse
import sys

import halide as hl
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="pixels of a side, a multiple of 16")
    arguments = parser.parse_args()
    size = arguments.size
    image = np.random.default_rng(3).random((size, size), dtype=np.float32)

    x, y, xi, yi = hl.Var("x"), hl.Var("y"), hl.Var("xi"), hl.Var("yi")
    given = hl.Buffer(image)
    edge = hl.BoundaryConditions.repeat_edge(given)
    across, blur, sharp = hl.Func("across"), hl.Func("blur"), hl.Func("sharp")
    across[x, y] = (edge[x - 1, y] + 2 * edge[x, y] + edge[x + 1, y]) / 4
    blur[x, y] = (across[x, y - 1] + 2 * across[x, y] + across[x, y + 1]) / 4
    sharp[x, y] = edge[x, y] + 1.5 * (edge[x, y] - blur[x, y])
    sharp.gpu_tile(x, y, xi, yi, 16, 16)
    blur.compute_at(sharp, x).gpu_threads(x, y)

    pixels = hl.RDom([(0, size), (0, size)])
    bins, bin = hl.Func("bins"), hl.Var("bin")
    bins[bin] = hl.u32(0)
    level = hl.clamp(hl.i32(given[pixels.x, pixels.y] * 16), 0, 15)
    bins[level] += hl.u32(1)
    bins.gpu_tile(bin, xi, 16)
    bins.update().atomic().gpu_tile(pixels.x, pixels.y, hl.RVar("bx"), hl.RVar("by"), hl.RVar("tx"), hl.RVar("ty"), 16, 16)

    target = hl.Target("host-cuda-cuda_capability_75")
    out = np.array(sharp.realize([size, size], target))
    counts = np.array(bins.realize([16], target))

    wide = np.pad(image.astype(np.float64), 1, mode="edge")
    rows = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
    blurred = (rows[:-2] + 2 * rows[1:-1] + rows[2:]) / 4
    want = image + 1.5 * (image - blurred)
    off = np.abs(out - want).max()
    counts_right = (counts == np.bincount(np.minimum((image * 16).astype(int), 15).ravel(), minlength=16)).all()
    print(f"the picture is off by {off:.1e}; the histogram is {'right' if counts_right else 'WRONG'}")
    right = off < 1e-4 and counts_right
    print("the pipeline is right" if right else "the pipeline is WRONG")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
