"""`python -m divvy_jobs.ray resources`: what `ray start --resources` is told of this node's device memory."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from divvy_jobs import agent
from divvy_jobs.agent import Fault
from divvy_jobs.ray.request import GPU_MEMORY


def usable_bytes(devices: list[dict[str, Any]]) -> int:
    """The memory that programs can have of these devices. A GPU that is divided into MIG instances is there as those."""
    total = 0
    for device in devices:
        hardware = device.get("hardware") or {}
        is_divided = hardware.get("mig_mode") is True and hardware.get("mig_instance") is None
        if not is_divided:
            total += int(device["memory_total_bytes"]) - int(device.get("memory_reserved_bytes") or 0)
    return total


def main() -> int:
    """Prints it. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m divvy_jobs.ray", description=__doc__)
    parser.add_argument("what", choices=["resources"], help="print the custom resources of this node, as JSON")
    parser.parse_args()
    try:
        devices = agent.command("devices")["items"]
    except Fault as fault:
        print(f"divvy_jobs: {fault}", file=sys.stderr)
        return 1
    print(json.dumps({GPU_MEMORY: usable_bytes(devices)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
