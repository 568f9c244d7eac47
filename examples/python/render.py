"""A differentiable render: finds where a disc is and how large it is, from a picture of it.

An ordinary Dr.Jit program: it knows nothing of Divvy. The picture is rendered on the device, and the gradient of its
difference from the wanted one moves the disc. Exit code 0 when the disc is found and the picture and its gradient are
what NumPy computes, 1 otherwise.
"""

import argparse
import sys

import drjit as dr
import numpy as np
from drjit.cuda.ad import Float, UInt32

WANTED = (0.62, 0.41, 0.22)
START = (0.45, 0.55, 0.15)
EDGE = 0.05


def picture(size, x, y, radius):
    """The disc with a soft edge, row by row: 1 inside, 0 outside."""
    index = dr.arange(UInt32, size * size)
    u = (Float(index % size) + 0.5) / size
    v = (Float(index // size) + 0.5) / size
    distance = dr.sqrt((u - x) ** 2 + (v - y) ** 2 + 1e-6)
    return 1 / (1 + dr.exp((distance - radius) / EDGE))


def picture_of_numpy(size, x, y, radius):
    """The same in double precision."""
    u = (np.arange(size) + 0.5) / size
    distance = np.sqrt((u[None, :] - x) ** 2 + (u[:, None] - y) ** 2 + 1e-6)
    return (1 / (1 + np.exp((distance - radius) / EDGE))).ravel()


def gradient(size, wanted, values):
    """The error of a picture, and what the error changes by with each of the disc's numbers."""
    disc = [Float(value) for value in values]
    dr.enable_grad(*disc)
    error = dr.mean((picture(size, *disc) - wanted) ** 2)
    dr.backward(error)
    return error.numpy()[0], np.array([dr.grad(value).numpy()[0] for value in disc])


def gradient_of_numpy(size, wanted, values, step=1e-5):
    """The same by differences."""
    slopes = []
    for n in range(3):
        ends = []
        for sign in (1, -1):
            moved = list(values)
            moved[n] += sign * step
            ends.append(np.mean((picture_of_numpy(size, *moved) - wanted) ** 2))
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return np.array(slopes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=128, help="pixels of a side")
    parser.add_argument("--steps", type=int, default=150, help="steps of gradient descent")
    arguments = parser.parse_args()
    size = arguments.size

    target = picture(size, *(Float(value) for value in WANTED))
    dr.eval(target)
    reference = picture_of_numpy(size, *WANTED)
    off = np.abs(target.numpy() - reference).max()
    slope = gradient(size, target, START)[1]
    slope_off = np.abs(slope - gradient_of_numpy(size, reference, START)).max()

    disc = np.array(START)
    for _ in range(arguments.steps):
        error, slope = gradient(size, target, disc)
        disc -= 0.1 * slope
    distance = np.abs(disc - WANTED).max()
    print(f"picture off by {off:.1e}, gradient by {slope_off:.1e}; the disc by {distance:.4f} after {arguments.steps} steps")
    right = off < 1e-4 and slope_off < 1e-4 and distance < 0.01 and error < 1e-4
    print("the disc is right" if right else "the disc is WRONG")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
