"""`%load_ext divvy_jobs`: a line below a cell says how much of the slice is in use, when that has changed; `%divvy` says it now."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from divvy_jobs.agent import Agent, Fault

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_KEY = "_divvy_line"
#: Changes of memory below this are not told of.
_LEAST = 1 << 20


def amount(count: int) -> str:
    """`1.5 GiB`, `256 MiB`."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


class Line:
    """The line of this kernel's slice."""

    def __init__(self, socket: str, run_dir: str) -> None:
        # The name of its socket's folder is the slice's id.
        self._which = os.path.basename(os.path.dirname(os.path.realpath(socket)))
        self._agent = Agent(run_dir)
        self._told = -1

    @classmethod
    def here(cls) -> Line | None:
        """Of this process; None where it is in no slice, or where no agent is in reach, as in a container."""
        socket, run_dir = os.environ.get("DIVVY_SLICE"), os.environ.get("DIVVY_RUN_DIR")
        return cls(socket, run_dir) if socket and run_dir else None

    def text(self) -> str:
        """`slice alice: 1.5 GiB of 4.0 GiB, 12% of the last second (25% promised)`."""
        record = self._agent.slice(self._which)
        self._told = int(record["memory_used_bytes"])
        text = f"slice {record['name']}: {amount(self._told)} of {amount(int(record['memory_limit_bytes']))}"
        had = [item for item in self._agent.compute() if item["slice_id"] == self._which]
        if had and had[0].get("used_1s") is not None:
            text += f", {had[0]['used_1s'] / 100:.0f}% of the last second"
        if record.get("compute"):
            text += f" ({record['compute'] / 100:g}% promised)"
        others = {process["pid"] for process in record["processes"]} - {os.getpid()}
        return text + (f", shared with {len(others)} other processes" if others else "")

    def changed(self) -> str | None:
        """The line, if memory has changed since it was last told."""
        before = self._told
        text = self.text()
        return text if abs(self._told - before) >= _LEAST else None


def _of_nvml() -> str:
    """In a container: what NVML shows of the slice."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    memory, handle = Memory(), ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        failed = (
            nvml.nvmlInit_v2()
            or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
            or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        )
    except (OSError, AttributeError):
        failed = 1
    if failed:
        return "this kernel is in no slice"
    return f"device: {amount(memory.used)} of {amount(memory.total)}"


def say() -> str:
    """The line now."""
    line = Line.here()
    try:
        return line.text() if line else _of_nvml()
    except Fault as fault:
        return str(fault)


def load(shell: InteractiveShell) -> None:
    """Adds `%divvy`, and the line below cells."""
    line = Line.here()

    def below(_result: Any) -> None:
        try:
            text = line.changed() if line else None
        except Fault:
            # The agent restarts. A cell is no place to tell that.
            text = None
        if text:
            print(text)

    def magic(_words: str) -> None:
        """Says how much of the slice is in use."""
        print(say())

    register: Any = shell.register_magic_function
    register(magic, "line", "divvy")
    shell.events.register("post_run_cell", below)
    setattr(shell, _KEY, below)
    print(say())


def unload(shell: InteractiveShell) -> None:
    """Ends the line below cells."""
    below = getattr(shell, _KEY, None)
    if below is not None:
        shell.events.unregister("post_run_cell", below)
        setattr(shell, _KEY, None)
