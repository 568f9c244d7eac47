"""k-means clustering of points drawn around known centres, checked against those centres and against NumPy.

An ordinary numba-cuda program: it knows nothing of Divvy. Exit code 0 when the clusters are right, 1 otherwise.
"""

import argparse
import sys

import numpy as np
from numba import cuda, float32

CLUSTERS = 8
BLOCK = 128


@cuda.jit
def assign(points, centres, labels, sums, counts):
    """Gives each point its nearest centre and adds the point to that centre's sum."""
    near = cuda.shared.array((CLUSTERS, 2), float32)
    thread = cuda.threadIdx.x
    if thread < CLUSTERS:
        near[thread, 0] = centres[thread, 0]
        near[thread, 1] = centres[thread, 1]
    cuda.syncthreads()

    i = cuda.grid(1)
    if i < points.shape[0]:
        best = 0
        best_distance = np.float32(np.inf)
        for k in range(CLUSTERS):
            dx = points[i, 0] - near[k, 0]
            dy = points[i, 1] - near[k, 1]
            distance = dx * dx + dy * dy
            if distance < best_distance:
                best_distance = distance
                best = k
        labels[i] = best
        cuda.atomic.add(sums, (best, 0), points[i, 0])
        cuda.atomic.add(sums, (best, 1), points[i, 1])
        cuda.atomic.add(counts, best, 1)


@cuda.jit
def move(centres, sums, counts):
    """Moves each centre to the mean of its points, and makes ready for the next round."""
    k = cuda.grid(1)
    if k < CLUSTERS:
        if counts[k] > 0:
            centres[k, 0] = sums[k, 0] / counts[k]
            centres[k, 1] = sums[k, 1] / counts[k]
        sums[k, 0] = 0.0
        sums[k, 1] = 0.0
        counts[k] = 0


def on_device(points, start, rounds):
    """Labels and centres after the given number of rounds on the device."""
    device_points = cuda.to_device(points)
    centres = cuda.to_device(start)
    labels = cuda.device_array(len(points), np.int32)
    sums = cuda.to_device(np.zeros((CLUSTERS, 2), np.float64))
    counts = cuda.to_device(np.zeros(CLUSTERS, np.int32))
    for _ in range(rounds):
        assign[(len(points) + BLOCK - 1) // BLOCK, BLOCK](device_points, centres, labels, sums, counts)
        move[1, 32](centres, sums, counts)
    return labels.copy_to_host(), centres.copy_to_host()


def on_host(points, start, rounds):
    """The same in NumPy."""
    centres = start.copy()
    for _ in range(rounds):
        distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        labels = distances.argmin(axis=1)
        for k in range(CLUSTERS):
            if (labels == k).any():
                centres[k] = points[labels == k].mean(axis=0, dtype=np.float64)
    return labels, centres


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()

    random = np.random.default_rng(11)
    angles = np.arange(CLUSTERS) * (2 * np.pi / CLUSTERS)
    truth = np.stack([4 * np.cos(angles), 4 * np.sin(angles)], axis=1)
    owners = random.integers(0, CLUSTERS, arguments.points)
    points = (truth[owners] + random.normal(0, 0.3, (arguments.points, 2))).astype(np.float32)
    start = (truth * 0.7).astype(np.float32)

    labels, centres = on_device(points, start, arguments.rounds)
    host_labels, host_centres = on_host(points, start, arguments.rounds)

    from_host = np.abs(centres - host_centres).max()
    from_truth = np.abs(centres - truth).max()
    same = (labels == host_labels).mean()
    # A point half way between two centres may go either way; the sums are added in another order.
    right = from_host < 1e-3 and from_truth < 0.1 and same > 0.999
    print(
        f"{arguments.points} points, {CLUSTERS} clusters: centres within {from_truth:.3f} of the truth and"
        f" {from_host:.1e} of NumPy, {same:.2%} of the labels equal: {'right' if right else 'WRONG'}"
    )
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
