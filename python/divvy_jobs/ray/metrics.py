"""Figures of a worker's slice among Ray's own metrics, which Ray serves to Prometheus on each node."""

from __future__ import annotations

import threading
import time
from typing import Any

from divvy_jobs.agent import Agent, Fault
from divvy_jobs.ray.holding import Holding

_TAGS = ("slice", "device")
_LOCK = threading.Lock()
_begun = False


class Gauges:
    """One reading is one value of each."""

    def __init__(self) -> None:
        from ray.util.metrics import Gauge

        def gauge(name: str, what: str) -> Any:
            return Gauge(f"divvy_{name}", description=what, tag_keys=_TAGS)

        self.used = gauge("memory_used_bytes", "Memory of the device that the worker's slice holds")
        self.limit = gauge("memory_limit_bytes", "Memory of the device that the worker's slice may hold")
        self.share = gauge("compute_share_ratio", "The share of the device's time that the slice is promised")
        self.had = gauge("compute_used_ratio", "The part of the last ten seconds in which the slice had the device")

    def read(self, agent: Agent, which: str) -> None:
        """Reads the slice's figures."""
        record = agent.slice(which)
        had = {item["device_uuid"]: item for item in agent.compute() if item["slice_id"] == which}
        for share in record["devices"]:
            device = str(share["device_uuid"])
            tags = {"slice": str(record["name"]), "device": device}
            self.used.set(float(share["memory_used_bytes"]), tags)
            self.limit.set(float(share["memory_limit_bytes"]), tags)
            self.share.set(record.get("compute", 0) / 10_000, tags)
            part = had.get(device, {}).get("used_10s")
            if part is not None:
                self.had.set(part / 10_000, tags)


def begin(holding: Holding) -> None:
    """Reads them again and again in a thread, once in a process."""
    global _begun
    interval = holding.options.metrics_s
    with _LOCK:
        if _begun or interval <= 0:
            return
        _begun = True
    threading.Thread(target=_read, args=(holding, interval), name="divvy-metrics", daemon=True).start()


def _read(holding: Holding, interval: float) -> None:
    gauges = Gauges()
    while True:
        record = holding.slice
        if record is not None:
            try:
                gauges.read(holding.agent, str(record["id"]))
            except Fault:
                # The agent restarts, or the slice has just been given back: the next reading tells.
                pass
        time.sleep(interval)
