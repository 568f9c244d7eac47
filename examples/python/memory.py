"""Asks the device how much memory it has, then for more and more, and shows how a refusal reaches a Python program.

An ordinary numba-cuda program: it knows nothing of Divvy. One JSON object per line on standard output. Exit code 0
when the device kept its word (what it said was free could be had, and memory that was refused was out of memory).
"""

import argparse
import json
import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


def tell(**facts):
    print(json.dumps(facts), flush=True)


def memory():
    free, total = cuda.current_context().get_memory_info()
    return {"free_bytes": int(free), "total_bytes": int(total)}


def refused(size):
    """The error that asking for `size` bytes gives, or nothing when they are given (and freed again)."""
    try:
        array = cuda.device_array(size, np.uint8)
    except CudaAPIError as error:
        return error
    del array
    cuda.current_context().deallocations.clear()
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--try", dest="tries", type=int, action="append", default=[], metavar="MIB")
    arguments = parser.parse_args()

    start = memory()
    tell(event="start", **start)
    kept_its_word = True
    for mib in arguments.tries:
        size = mib << 20
        free = memory()["free_bytes"]
        error = refused(size)
        tell(
            event="try", bytes=size, given=error is None,
            exception=type(error).__name__ if error else None, message=str(error) if error else None,
        )
        if error is None:
            kept_its_word = kept_its_word and size <= free
        else:
            kept_its_word = kept_its_word and size > free and "OUT_OF_MEMORY" in str(error)

    # A refusal does no harm: the program computes on.
    numbers = cuda.to_device(np.arange(1000, dtype=np.int64))
    double[8, 128](numbers)
    still_right = bool((numbers.copy_to_host() == 2 * np.arange(1000)).all())
    tell(event="end", still_right=still_right, kept_its_word=kept_its_word, **memory())
    sys.exit(0 if still_right and kept_its_word else 1)


@cuda.jit
def double(numbers):
    i = cuda.grid(1)
    if i < numbers.size:
        numbers[i] *= 2


if __name__ == "__main__":
    main()
