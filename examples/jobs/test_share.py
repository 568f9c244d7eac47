"""`pytest -n 4 --divvy examples/jobs/test_share.py`: four workers share one card, each with a quarter."""

import pytest
from numba import cuda


@pytest.mark.parametrize("place", range(8))
def test_each_worker_sees_its_part(place: int) -> None:
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total
    print(f"{place}: {total >> 20} MiB")
