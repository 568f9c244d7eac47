"""Trains a small net on points of two rings, after a convolution that is checked against NumPy.

An ordinary tinygrad program: it knows nothing of Divvy. Set DEV=CUDA and TRAINING=1, as tinygrad asks. Exit code 0 when
the convolution is NumPy's and the net tells the rings apart, 1 otherwise.
"""

import argparse
import os
import sys

os.environ.setdefault("DEV", "CUDA")
os.environ.setdefault("TRAINING", "1")

import numpy as np  # noqa: E402
from tinygrad import Tensor, TinyJit, nn  # noqa: E402


def convolution_is_right(random):
    """A 3 by 3 convolution of two small pictures, with a bias and a rectifier."""
    pictures = random.random((2, 3, 10, 10), dtype=np.float32)
    kernel = random.random((4, 3, 3, 3), dtype=np.float32) - 0.5
    got = Tensor(pictures).conv2d(Tensor(kernel)).relu().numpy()
    want = np.zeros((2, 4, 8, 8))
    for row in range(3):
        for column in range(3):
            part = pictures[:, :, row : row + 8, column : column + 8]
            want += np.einsum("bchw,oc->bohw", part, kernel[:, :, row, column])
    return np.abs(got - np.maximum(want, 0)).max() < 1e-4


class Net:
    """Two layers."""

    def __init__(self, random):
        self.first = nn.Linear(2, 16)
        self.second = nn.Linear(16, 1)
        for layer in (self.first, self.second):
            layer.weight = Tensor(random.normal(0, 0.7, layer.weight.shape).astype(np.float32))
            layer.bias = Tensor(np.zeros(layer.bias.shape, np.float32))

    def __call__(self, points):
        return self.second(self.first(points).tanh())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=256, help="points to train on")
    parser.add_argument("--steps", type=int, default=80, help="steps of training")
    arguments = parser.parse_args()
    random = np.random.default_rng(5)

    right = convolution_is_right(random)
    print("the convolution is right" if right else "the convolution is WRONG")

    ring = np.arange(arguments.points) % 2
    angle = random.uniform(0, 2 * np.pi, arguments.points)
    radius = 0.5 + ring + random.normal(0, 0.1, arguments.points)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    given, wanted = Tensor(points), Tensor((2.0 * ring - 1).astype(np.float32).reshape(-1, 1))

    net = Net(random)
    training = nn.optim.SGD(nn.state.get_parameters(net), lr=0.1, momentum=0.9)

    @TinyJit
    def step():
        training.zero_grad()
        loss = ((net(given) - wanted) ** 2).mean()
        loss.backward()
        training.step()
        return loss.realize()

    for _ in range(arguments.steps):
        loss = step()
    share = float((np.sign(net(given).numpy()) == np.sign(wanted.numpy())).mean())
    print(f"loss {loss.item():.4f}, {share:.1%} of the points are told apart")
    right = right and share > 0.95
    print("the net is right" if right else "the net is WRONG")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
