"""A tiny neural network (2-16-1) trained by gradient descent to tell a ring from the disc inside it.

An ordinary numba-cuda program: it knows nothing of Divvy. Its first gradient is checked against NumPy, its accuracy
against a threshold. Exit code 0 when both are right, 1 otherwise.
"""

import argparse
import math
import sys

import numpy as np
from numba import cuda

HIDDEN = 16
# Weights and biases in one array: input to hidden (2 x HIDDEN), hidden biases, hidden to output, output bias.
W1, B1, W2, B2, PARAMETERS = 0, 2 * HIDDEN, 3 * HIDDEN, 4 * HIDDEN, 4 * HIDDEN + 1
BLOCK = 64


@cuda.jit
def gradient(points, targets, parameters, gradients, losses):
    """Each thread carries one sample forward and back, and adds its share of the gradient."""
    i = cuda.grid(1)
    if i >= points.shape[0]:
        return
    x, y = points[i, 0], points[i, 1]
    hidden = cuda.local.array(HIDDEN, np.float32)
    score = parameters[B2]
    for h in range(HIDDEN):
        hidden[h] = math.tanh(
            x * parameters[W1 + 2 * h] + y * parameters[W1 + 2 * h + 1] + parameters[B1 + h]
        )
        score += hidden[h] * parameters[W2 + h]
    probability = 1.0 / (1.0 + math.exp(-score))
    error = (probability - targets[i]) / points.shape[0]

    chosen = probability if targets[i] > 0.5 else 1.0 - probability
    losses[i] = -math.log(max(chosen, 1e-7))
    cuda.atomic.add(gradients, B2, error)
    for h in range(HIDDEN):
        cuda.atomic.add(gradients, W2 + h, error * hidden[h])
        back = error * parameters[W2 + h] * (1.0 - hidden[h] * hidden[h])
        cuda.atomic.add(gradients, W1 + 2 * h, back * x)
        cuda.atomic.add(gradients, W1 + 2 * h + 1, back * y)
        cuda.atomic.add(gradients, B1 + h, back)


@cuda.jit
def descend(parameters, gradients, rate):
    """Takes one step down and clears the gradient."""
    p = cuda.grid(1)
    if p < parameters.size:
        parameters[p] -= rate * gradients[p]
        gradients[p] = 0.0


def forward(points, parameters):
    """Hidden values and probabilities in NumPy."""
    weights = parameters[W1:B1].reshape(HIDDEN, 2)
    hidden = np.tanh(points @ weights.T + parameters[B1:W2])
    return hidden, 1.0 / (1.0 + np.exp(-(hidden @ parameters[W2:B2] + parameters[B2])))


def gradient_on_host(points, targets, parameters):
    """The gradient in NumPy, double precision."""
    points, parameters = points.astype(np.float64), parameters.astype(np.float64)
    hidden, probability = forward(points, parameters)
    error = (probability - targets) / len(points)
    back = error[:, None] * parameters[W2:B2] * (1.0 - hidden**2)
    return np.concatenate([(back.T @ points).ravel(), back.sum(axis=0), error @ hidden, [error.sum()]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()

    random = np.random.default_rng(3)
    angles = random.uniform(0, 2 * np.pi, arguments.samples)
    targets = (np.arange(arguments.samples) % 2).astype(np.float32)
    radii = np.where(targets > 0.5, random.uniform(1.2, 1.8, arguments.samples), random.uniform(0, 0.9, arguments.samples))
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).astype(np.float32)
    start = random.normal(0, 1, PARAMETERS).astype(np.float32)

    device_points, device_targets = cuda.to_device(points), cuda.to_device(targets)
    parameters = cuda.to_device(start)
    gradients = cuda.to_device(np.zeros(PARAMETERS, np.float32))
    losses = cuda.device_array(arguments.samples, np.float32)
    blocks = (arguments.samples + BLOCK - 1) // BLOCK

    first_gradient, first_loss = None, None
    for step in range(arguments.steps):
        gradient[blocks, BLOCK](device_points, device_targets, parameters, gradients, losses)
        if step == 0:
            first_gradient, first_loss = gradients.copy_to_host(), losses.copy_to_host().mean()
        descend[(PARAMETERS + BLOCK - 1) // BLOCK, BLOCK](parameters, gradients, np.float32(2.0))
    last_loss = losses.copy_to_host().mean()

    expected = gradient_on_host(points, targets, start)
    gradient_error = np.abs(first_gradient - expected).max()
    _, probability = forward(points, parameters.copy_to_host())
    accuracy = ((probability > 0.5) == (targets > 0.5)).mean()
    right = gradient_error < 1e-4 and accuracy > 0.95 and last_loss < first_loss
    print(
        f"{arguments.steps} steps: loss {first_loss:.3f} -> {last_loss:.3f}, accuracy {accuracy:.1%}, first gradient"
        f" within {gradient_error:.1e} of NumPy: {'right' if right else 'WRONG'}"
    )
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
