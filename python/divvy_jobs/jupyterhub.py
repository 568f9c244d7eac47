"""Spawners of JupyterHub with a lasting slice for each user: all of a user's kernels together stay inside it.

    # jupyterhub_config.py
    c.JupyterHub.spawner_class = "divvy_jobs.jupyterhub.DivvyLocalProcessSpawner"
    c.DivvyLocalProcessSpawner.divvy_memory = "4GiB"

The slice is the user's own where a notebook runs as a user of the machine, and the hub's where it runs in a container.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Bool, Unicode
from traitlets.config import Configurable

from divvy_jobs import agent, lasting
from divvy_jobs.agent import Fault


class DivvyMixin(Configurable):
    """For a spawner class, in front of it: `class Mine(DivvyMixin, LocalProcessSpawner)`."""

    # What every spawner has.
    user: Any
    name: Any
    cmd: Any
    extra_host_config: Any

    divvy_memory = Unicode("", config=True, help="Memory of each user's slice: `4GiB`, `10%` (of the device). Required.")
    divvy_compute = Unicode("", config=True, help="Its share of the device's time, as `30%`. Left out: a part of what is left.")
    divvy_cap = Unicode("", config=True, help="Whether the share is a bound too: `soft` or `hard`.")
    divvy_device = Unicode("", config=True, help="The device, by index or UUID. Left out: one with space.")
    divvy_isolation = Unicode("", config=True, help="The isolation level. Left out: the agent's own choice.")
    divvy_slice = Unicode(
        "jupyter-{username}",
        config=True,
        help="The slice's name. With {servername} in it each named server of a user has a slice of its own.",
    )
    divvy_keep = Bool(True, config=True, help="Whether the slice stays while the user's server is stopped.")
    divvy_on = Bool(True, config=True, help="False: spawn as if Divvy were not there.")

    def divvy_slice_name(self) -> str:
        """The name of this user's slice."""
        text = self.divvy_slice.format(username=self.user.name, servername=self.name or "default")
        return lasting.name_of(text)

    def divvy_user(self) -> str | None:
        """The user of the machine whose slice it is; None for the hub's own."""
        return str(self.user.name)

    def divvy_terms(self) -> dict[str, str]:
        """The flags of the slice."""
        names = ("memory", "compute", "cap", "device", "isolation")
        terms = {name: str(getattr(self, f"divvy_{name}")) for name in names}
        if not terms["memory"]:
            raise Fault(
                "no memory is configured for users' slices",
                hint=f"c.{type(self).__name__}.divvy_memory = '4GiB' in jupyterhub_config.py",
            )
        return terms

    async def divvy_ensure(self) -> str:
        """Makes the slice, or changes it to what is configured now; its name.

        Raises:
            Fault: the agent refused; the hub shows the user why.
        """
        name = self.divvy_slice_name()
        try:
            await _aside(lasting.ensure, name, self.divvy_terms(), self.divvy_user())
        except Fault as fault:
            # The hub shows this to the user, in the place of "spawn failed".
            fault.jupyterhub_message = f"No slice of the GPU: {fault}"  # type: ignore[attr-defined]
            raise
        return name

    async def divvy_end(self) -> None:
        """After the server has stopped."""
        if self.divvy_on and not self.divvy_keep:
            await _aside(lasting.delete, self.divvy_slice_name(), self.divvy_user())

    def divvy_command(self, name: str, command: list[str]) -> list[str]:
        """The server's command, in the slice."""
        return [agent.program(), "run", "--slice", name, "--", *command]

    async def start(self) -> Any:
        """Starts the server in the user's slice."""
        if not self.divvy_on:
            return await super().start()  # type: ignore[misc]
        name, plain = await self.divvy_ensure(), self.cmd
        self.cmd = self.divvy_command(name, list(plain))
        try:
            return await super().start()  # type: ignore[misc]
        finally:
            self.cmd = plain

    async def stop(self, now: bool = False) -> None:
        """Stops the server, and deletes the slice unless it is kept."""
        await super().stop(now)  # type: ignore[misc]
        await self.divvy_end()

    def get_env(self) -> dict[str, str]:
        """The server's environment: it finds the same agent as the hub."""
        environment: dict[str, str] = super().get_env()  # type: ignore[misc]
        for variable in lasting.VARIABLES:
            if variable in os.environ:
                environment.setdefault(variable, os.environ[variable])
        return environment


class DivvyLocalProcessSpawner(DivvyMixin, LocalProcessSpawner):  # type: ignore[misc]
    """Servers as processes of users of this machine."""


class DivvyContainerMixin(DivvyMixin):
    """For spawners of containers: the slice is the hub's, and a container has it as a CDI device."""

    def divvy_user(self) -> str | None:
        """The hub's own."""
        return None

    def divvy_command(self, name: str, command: list[str]) -> list[str]:
        """Unchanged: the container has the slice."""
        return command

    def divvy_host_config(self, device: str) -> dict[str, Any]:
        """What the engine is told, in the words of Docker's API."""
        request = {"Driver": "cdi", "Count": 0, "DeviceIDs": [device], "Capabilities": [], "Options": {}}
        return {"device_requests": [request]}

    async def start(self) -> Any:
        """Starts the container with the slice's device."""
        if self.divvy_on:
            name = await self.divvy_ensure()
            device = await _aside(lasting.for_containers, name)
            self.extra_host_config = {**self.extra_host_config, **self.divvy_host_config(device)}
        return await super(DivvyMixin, self).start()  # type: ignore[misc]


async def _aside(work: Any, *arguments: Any) -> Any:
    """Work that blocks, in a thread: the hub serves others meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments))


def __getattr__(name: str) -> type:
    """The classes over spawners that are packages of their own, which need not be there."""
    if name == "DivvySystemdSpawner":
        from systemdspawner import SystemdSpawner

        return type(name, (DivvyMixin, SystemdSpawner), {"__doc__": "Servers as systemd units."})
    if name == "DivvyDockerSpawner":
        from dockerspawner import DockerSpawner

        return type(name, (DivvyContainerMixin, DockerSpawner), {"__doc__": "Servers in containers of Docker's."})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
