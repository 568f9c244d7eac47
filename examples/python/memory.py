"""Asks the device how much memory it has, then for more and more, and shows how a refusal reaches a Python program.

An ordinary numba-cuda program: it knows nothing of Divvy. With --json it prints one JSON object per
line. Exit code 0 when the device kept its word: what it said was free could be had, and what it refused was too much.
"""

import argparse
import json
import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


def tell(text, facts, as_json):
    print(json.dumps(facts) if as_json else text, flush=True)


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
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    start = memory()
    tell(f"{start['free_bytes'] >> 20} MiB of {start['total_bytes'] >> 20} MiB are free", start, arguments.json)
    kept_its_word = True
    for mib in arguments.tries:
        size = mib << 20
        free = memory()["free_bytes"]
        error = refused(size)
        facts = {"bytes": size, "given": error is None}
        if error is not None:
            facts |= {"exception": type(error).__name__, "message": str(error)}
        tell(f"{mib} MiB: {f'{type(error).__name__}: {error}' if error else 'given'}", facts, arguments.json)
        if error is None:
            kept_its_word = kept_its_word and size <= free
        else:
            kept_its_word = kept_its_word and size > free and "OUT_OF_MEMORY" in str(error)

    # A refusal does no harm: the program computes on.
    numbers = cuda.to_device(np.arange(1000, dtype=np.int64))
    double[8, 128](numbers)
    still_right = bool((numbers.copy_to_host() == 2 * np.arange(1000)).all())
    verdict = "right" if still_right else "WRONG"
    tell(f"a kernel after that: {verdict}", {"still_right": still_right, "kept_its_word": kept_its_word}, arguments.json)
    sys.exit(0 if still_right and kept_its_word else 1)


@cuda.jit
def double(numbers):
    i = cuda.grid(1)
    if i < numbers.size:
        numbers[i] *= 2


if __name__ == "__main__":
    main()
