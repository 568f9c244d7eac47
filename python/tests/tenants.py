"""What tests with Ray have in common: its slices, and an actor that does to its device what it is told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from divvy_jobs import agent

MIB = 1 << 20
GIB = 1 << 30
#: Memory of the emulated H100.
CARD = 81_559 * MIB


def slices() -> list[dict[str, Any]]:
    """The slices that there are."""
    found: list[dict[str, Any]] = agent.command("ps")["items"]
    return [record for record in found if record["name"].startswith("ray-")]


def until(what: str, holds: Callable[[], bool]) -> None:
    """Waits for a condition."""
    end_ = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end_, what
        time.sleep(0.05)


def actor(library: Any) -> Any:
    """An actor that does to its device what it is told."""

    @library.remote
    class Tenant:
        def start(self) -> int:
            import cuda

            return cuda.start()

        def total(self) -> int:
            import cuda

            return cuda.total()

        def take_all(self) -> int:
            """Allocates until that is refused: how many GiB there were."""
            import cuda

            count = 0
            while (status := cuda.allocate(GIB)) == 0:
                count += 1
            assert status == cuda.OUT_OF_MEMORY
            return count

        def add(self) -> int:
            """Computes something on the device."""
            import cuda

            return cuda.doubled()

        def where(self) -> tuple[int, str, list[str]]:
            import ray as inside

            ids = inside.get_runtime_context().get_accelerator_ids()["GPU"]
            return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], ids

    return Tenant
