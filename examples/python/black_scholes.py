"""Monte Carlo price of a European call option, checked against the Black-Scholes formula.

An ordinary numba-cuda program: it knows nothing of Divvy. Exit code 0 when the price is right, 1 otherwise.
"""

import argparse
import math
import sys
import time

import numpy as np
from numba import cuda
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_normal_float32

SPOT, STRIKE, RATE, VOLATILITY, YEARS = 100.0, 105.0, 0.03, 0.25, 1.0
BLOCK = 128


@cuda.jit
def simulate(states, paths_per_thread, spot, strike, drift, deviation, sums, squares):
    """Each thread follows its own paths and keeps the sum of the payoffs and of their squares."""
    thread = cuda.grid(1)
    if thread < sums.size:
        total = 0.0
        total_of_squares = 0.0
        for _ in range(paths_per_thread):
            shock = xoroshiro128p_normal_float32(states, thread)
            payoff = max(spot * math.exp(drift + deviation * shock) - strike, 0.0)
            total += payoff
            total_of_squares += payoff * payoff
        sums[thread] = total
        squares[thread] = total_of_squares


def formula():
    """The price in closed form."""
    deviation = VOLATILITY * math.sqrt(YEARS)
    d1 = (math.log(SPOT / STRIKE) + (RATE + VOLATILITY**2 / 2) * YEARS) / deviation
    cumulative = lambda x: 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))
    return SPOT * cumulative(d1) - STRIKE * math.exp(-RATE * YEARS) * cumulative(d1 - deviation)


def price(states, threads, paths_per_thread):
    """The simulated price and its standard error."""
    sums = cuda.device_array(threads, np.float64)
    squares = cuda.device_array(threads, np.float64)
    simulate[(threads + BLOCK - 1) // BLOCK, BLOCK](
        states, paths_per_thread, SPOT, STRIKE, (RATE - VOLATILITY**2 / 2) * YEARS, VOLATILITY * math.sqrt(YEARS),
        sums, squares,
    )
    paths = threads * paths_per_thread
    mean = sums.copy_to_host().sum() / paths
    variance = squares.copy_to_host().sum() / paths - mean**2
    discount = math.exp(-RATE * YEARS)
    return mean * discount, math.sqrt(variance / paths) * discount, paths


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=4096)
    parser.add_argument("--paths-per-thread", type=int, default=64)
    parser.add_argument("--repeat", type=float, default=0, metavar="SECONDS", help="price again and again for so long")
    parser.add_argument("--keep", type=int, default=0, metavar="MIB", help="device memory to hold meanwhile")
    arguments = parser.parse_args()

    kept = cuda.device_array(arguments.keep << 20, np.uint8) if arguments.keep else None
    states = create_xoroshiro128p_states(arguments.threads, seed=7)
    expected = formula()
    correct = True
    end = time.monotonic() + arguments.repeat
    while True:
        start = time.perf_counter()
        value, error, paths = price(states, arguments.threads, arguments.paths_per_thread)
        seconds = time.perf_counter() - start
        # Five standard errors: a right program fails once in two million times.
        right = abs(value - expected) < 5 * error
        correct = correct and right
        print(
            f"{paths} paths: {value:.4f} +- {error:.4f}, formula {expected:.4f}: {'right' if right else 'WRONG'}"
            f" ({seconds:.2f} s)",
            flush=True,
        )
        if time.monotonic() >= end:
            break
    del kept
    sys.exit(0 if correct else 1)


if __name__ == "__main__":
    main()
