"""What a slice is asked for, from what Ray assigned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from divvy_jobs.agent import Fault
from divvy_jobs.ray.options import Options

#: The custom resource for memory of a device, in bytes (Ray's enhancement proposal 47).
GPU_MEMORY = "gpu_memory"
#: Parts of a whole, as the agent counts shares of memory and of time. Ray counts in the same.
WHOLE = 10_000


@dataclasses.dataclass(frozen=True)
class Assigned:
    """What Ray assigned to a task or an actor."""

    #: Cards: a part of one, or whole ones.
    gpus: float
    #: Bytes of a card's memory; 0 where the part of the card says it.
    memory: int

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> Assigned:
        """From Ray's resources, by name."""
        return cls(float(resources.get("GPU", 0)), int(resources.get(GPU_MEMORY, 0)))

    def is_nothing(self) -> bool:
        """Whether no device was asked for."""
        return self.gpus <= 0 and self.memory <= 0


def visible(devices: Sequence[Mapping[str, Any]], shown: str | None) -> list[Mapping[str, Any]]:
    """The devices that CUDA_VISIBLE_DEVICES shows, in its order.

    Raises:
        Fault: it names one that the agent does not have.
    """
    if shown is None:
        return list(devices)
    found = []
    for word in filter(None, (word.strip() for word in shown.split(","))):
        fits = [
            device for device in devices if str(device["index"]) == word or str(device["uuid"]).startswith(word)
        ]
        if len(fits) != 1:
            raise Fault(
                f"Ray assigned device {word!r}, and the agent has none of that name",
                hint="`divvy devices` lists them; `ray start --num-gpus` must not promise more than there are",
            )
        found += fits
    return found


def request(assigned: Assigned, devices: Sequence[Mapping[str, Any]], options: Options) -> dict[str, Any]:
    """The request for a slice of the first of these devices, or of all of them where whole ones are assigned.

    Raises:
        Fault: there are fewer devices, or none has the memory.
    """
    whole = int(assigned.gpus)
    wanted = max(whole, 1)
    if assigned.gpus > 0 and len(devices) < wanted:
        raise Fault(
            f"Ray assigned {assigned.gpus:g} GPUs, and shows {len(devices)}",
            hint="`ray start --num-gpus` must not promise more than `divvy devices` lists",
        )
    least = min((int(device["memory_total_bytes"]) for device in devices), default=0)
    asked: dict[str, Any] = {"isolation_unasked": options.isolation is None, "compute_cap": options.cap}
    if options.isolation is not None:
        asked["isolation"] = options.isolation
    if assigned.memory > 0:
        if all(assigned.memory > int(device["memory_total_bytes"]) for device in devices):
            raise Fault(
                f"{GPU_MEMORY} is {assigned.memory} bytes, and no device here has as much",
                hint=f"`python -m divvy_jobs.ray resources` says how much {GPU_MEMORY} a node has to offer",
            )
        asked["memory"] = {"bytes": assigned.memory}
    elif whole == 0:
        asked["memory"] = {"share": parts(assigned.gpus)}
    if options.compute is not None:
        asked["compute"] = parts(options.compute / 100)
    elif assigned.gpus > 0:
        asked["compute"] = WHOLE if whole else parts(assigned.gpus)
    else:
        asked["compute"] = max(1, min(WHOLE, assigned.memory * WHOLE // max(least, 1)))
    if assigned.gpus > 0:
        chosen = [{"uuid": str(device["uuid"])} for device in devices[:wanted]]
        asked["device"], asked["more_devices"] = chosen[0], chosen[1:]
    return asked


def parts(fraction: float) -> int:
    """Parts of 10 000, rounded down, so that all of them together are no more than a whole; at least one."""
    # A float a little below its decimal is that decimal: 0.0625 * 10000, 0.29 * 10000.
    return max(1, int(fraction * WHOLE + 1e-6))
