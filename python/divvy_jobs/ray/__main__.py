"""`python -m divvy_jobs.ray resources`: what `ray start --resources` is told of this node's device memory."""

from __future__ import annotations

import argparse
import json
import sys

from divvy_jobs import agent
from divvy_jobs.agent import Fault
from divvy_jobs.ray.request import GPU_MEMORY


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
    print(json.dumps({GPU_MEMORY: sum(int(device["memory_total_bytes"]) for device in devices)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
