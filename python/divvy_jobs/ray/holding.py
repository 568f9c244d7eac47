"""The slice of this worker: made when a task or an actor that has a device begins. It ends with the worker."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from divvy_jobs.agent import Agent, Fault
from divvy_jobs.ray import links
from divvy_jobs.ray.options import Options
from divvy_jobs.ray.request import Assigned, request, visible

#: What may pass by itself: memory or time that a worker before this one is giving back, and a slice that is just ending.
_PASSING = ("D0012", "D0037")
ENFORCED = "this agent's slices are enforced, and a worker of Ray's starts before its slice"
ENFORCED_HINT = 'runtime_env={"py_executable": "divvy run --memory 4GiB -- python"} gives workers one slice each'


class Holding:
    """The slice of one process. It ends with the process, whatever happens to that: the agent sees to it."""

    def __init__(self, agent: Agent, link: str, options: Options, shown: str | None) -> None:
        self.agent, self._link, self.options = agent, link, options
        # What this node's Ray was started with: for memory that was asked for without a card.
        self._shown = shown
        self._lock = threading.Lock()
        self._asked: Mapping[str, Any] = {}
        self.slice: dict[str, Any] | None = None

    @classmethod
    def of_worker(cls) -> Holding:
        """As the plugin prepared it in this process's environment."""
        environment = os.environ
        links.prepare(environment["DIVVY_SLICE"])
        return cls(
            Agent(environment["DIVVY_RUN_DIR"]),
            environment["DIVVY_SLICE"],
            Options.read(environment["DIVVY_RAY"]),
            environment.get("CUDA_VISIBLE_DEVICES"),
        )

    def take(self, resources: Mapping[str, float], shown: str | None, title: str) -> None:
        """Makes the slice that these resources say. Does nothing where no device was asked
        for: CUDA then stays unready.

        Raises:
            Fault: there is no space in `wait_s`, or this process is in another slice already.
        """
        assigned = Assigned.of(resources)
        if assigned.is_nothing():
            return
        with self._lock:
            devices = visible(self.agent.devices(), shown if assigned.gpus > 0 else self._shown)
            asked = request(assigned, devices, self.options)
            self.slice = self._with_retries(asked, title)
            # For the driver, which this process may not have loaded yet, and for what it starts.
            uuids = [str(share["device_uuid"]) for share in self.slice["devices"]]
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
            if self.slice.get("emulated_spec"):
                os.environ["DIVVY_EMULATED"] = str(self.slice["emulated_spec"])

    def _with_retries(self, asked: Mapping[str, Any], title: str) -> dict[str, Any]:
        end = time.monotonic() + self.options.wait_s
        while True:
            try:
                return self._kept(asked) if self.slice else self._made(asked, title)
            except Fault as fault:
                if fault.code not in _PASSING or time.monotonic() >= end:
                    raise
            time.sleep(0.05)

    def _made(self, asked: Mapping[str, Any], title: str) -> dict[str, Any]:
        created = self.agent.create(
            {**asked, "name": f"ray-{os.getpid()}-{secrets.token_hex(2)}"},
            {
                "command": ["ray", title],
                "emulated": os.environ.get("DIVVY_EMULATED"),
                "visible": None if "device" in asked else self._shown,
                "inside": _around(),
            },
        )
        made: dict[str, Any] = created["slice"]
        if made.get("isolation") == "enforced":
            self.agent.delete(made["id"])
            raise Fault(ENFORCED, hint=ENFORCED_HINT)
        self._asked = asked
        links.set_link(self._link, os.path.join(created["directory"], links.LINK))
        return made

    def _kept(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """For the next task of a reused worker: the agent lets no process change the slice that it is in."""
        assert self.slice is not None
        if asked != self._asked:
            raise Fault(
                f"this worker is in slice {self.slice['name']} already, and its next task has another share",
                hint="leave `max_calls=0` out: Ray then starts a worker for each task that has a GPU",
            )
        return self.slice

    def give_back(self) -> None:
        """After a task: a worker that has not used its device has no slice any more. One that has keeps it until it ends."""
        with self._lock, contextlib.suppress(Fault):
            if self.slice is not None and not self.agent.slice(self.slice["id"])["processes"]:
                links.unlink(self._link)
                self.agent.delete(self.slice["id"])
                self.slice = None


def _around() -> str | None:
    """The slice that this node's Ray was started in, by id: its workers' slices are parts of that."""
    outer = os.environ.get("DIVVY_RAY_INSIDE", "")
    return os.path.basename(os.path.dirname(outer)) or None
