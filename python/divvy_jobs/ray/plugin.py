"""The runtime-env plugin, which Ray loads on each node: workers of a job that asks for it start under Divvy's limiter.

It runs before a worker starts, and knows neither task nor actor: see `divvy_jobs.ray.worker` for what follows.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from divvy_jobs import agent
from divvy_jobs.agent import Fault
from divvy_jobs.ray import links
from divvy_jobs.ray.holding import ENFORCED, ENFORCED_HINT
from divvy_jobs.ray.options import Options

if TYPE_CHECKING:
    from ray._private.runtime_env.context import RuntimeEnvContext

#: With it Ray leaves CUDA_VISIBLE_DEVICES alone, and does not say which card a worker has.
NO_OVERRIDE = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
#: What the dynamic loader reads: joined with what the worker has, where other variables replace it.
_OF_LOADER = ("LD_PRELOAD", "LD_LIBRARY_PATH")
_TRUE = ("--", "/bin/true")


class Plugin(RuntimeEnvPlugin):
    """`runtime_env={"divvy": {}}`."""

    name = "divvy"
    # Behind those that choose a worker's Python: pip, uv, conda, py_executable.
    priority = 90

    @staticmethod
    def validate(runtime_env_dict: dict[str, Any]) -> None:
        """Refuses values that make no sense, and what cannot be kept to."""
        Options.of(runtime_env_dict["divvy"])
        for field in ("container", "image_uri"):
            if runtime_env_dict.get(field):
                raise Fault(
                    f"runtime_env: workers of `{field}` are in containers, which `divvy` does not reach",
                    hint="leave one of the two out; `divvy container run` gives a container a slice",
                )
        variables = {**os.environ, **(runtime_env_dict.get("env_vars") or {})}
        if variables.get(NO_OVERRIDE, "").lower() in ("1", "true"):
            raise Fault(
                f"{NO_OVERRIDE} is set: Ray does not say which card a worker has, and any it takes would have no limit",
                hint="leave the variable out; a task's slice shows it the card that Ray chose",
            )

    async def create(
        self,
        uri: str | None,
        runtime_env: Any,
        context: RuntimeEnvContext,
        logger: logging.Logger = logging.getLogger(__name__),
    ) -> float:
        """Looks whether this node has all that a worker needs. Takes no space on the disk."""
        await asyncio.get_running_loop().run_in_executor(None, _look, context.py_executable)
        return 0

    def modify_context(
        self,
        uris: list[str],
        runtime_env: Any,
        context: RuntimeEnvContext,
        logger: logging.Logger = logging.getLogger(__name__),
    ) -> None:
        """Puts the limiter and a link of its own in front of the worker's Python."""
        options = Options.of(runtime_env["divvy"])
        context.py_executable = _in_front(context.py_executable, _variables(links.base()), options)


def _variables(base: str) -> dict[str, str]:
    """What loads the limiter. The shell that becomes the worker writes its number, `$$`, into the link's path."""
    return {**limiter(), "DIVVY_SLICE": f"{base}/$$/{links.LINK}"}


@functools.lru_cache(maxsize=1)
def limiter() -> dict[str, str]:
    """The variables of a program in a slice, but for the slice: by a dry run, which starts an agent where none runs.

    Raises:
        Fault: there is no `divvy`, no agent, or no device.
    """
    plain = {name: value for name, value in os.environ.items() if name not in _OF_LOADER}
    dry = ["run", "--dry-run"]
    try:
        plan = agent.command(*dry, "--memory", "1MiB", *_TRUE, options={"env": plain})
    except Fault as fault:
        if fault.code != "D0012":
            raise
        # The card is full: a slice of this user's that is there has the same variables.
        own = [record for record in agent.command("slice", "list")["items"] if record["uid"] == os.getuid()]
        if not own:
            raise
        plan = agent.command(*dry, "--slice", str(own[0]["id"]), *_TRUE, options={"env": plain})
    variables = {str(name): str(value) for name, value in plan["environment"].items()}
    if plan["slice"]["isolation"] == "enforced":
        raise Fault(ENFORCED, hint=ENFORCED_HINT)
    # Ray says which card it is.
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    return variables


def _in_front(python: str, variables: dict[str, str], options: Options) -> str:
    """The command of a worker, for the shell in which Ray starts it."""
    words = ["env"]
    for name, value in variables.items():
        if name == "LD_PRELOAD":
            # A sanitizer's or profiler's library comes before ours.
            words.append(f'{name}="${{{name}:+${name}:}}"{shlex.quote(value)}')
        elif name == "LD_LIBRARY_PATH":
            words.append(f'{name}={shlex.quote(value)}"${{{name}:+:${name}}}"')
        elif name == "DIVVY_SLICE":
            before, after = value.split("$$")
            words.append(f"{name}={shlex.quote(before)}$${shlex.quote(after)}")
        else:
            words.append(f"{name}={shlex.quote(value)}")
    words.append(f"DIVVY_RAY={shlex.quote(options.written())}")
    around = os.environ.get("DIVVY_SLICE")
    if around:
        # This node's Ray is in a slice itself, of which its workers' are parts.
        words.append(f"DIVVY_RAY_INSIDE={shlex.quote(around)}")
    return " ".join([*words, python, "-m", "divvy_jobs.ray.worker"])


def _look(python: str) -> None:
    """Fails where a worker could not have a slice: no `divvy`, no agent, another Ray, no package in the worker's Python."""
    from divvy_jobs.ray import worker

    links.base()
    limiter()
    worker.hooks()
    if python == sys.executable:
        return
    import subprocess

    ran = subprocess.run(
        ["bash", "-c", f"{python} -c 'import divvy_jobs.ray.worker'"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise Fault(
            f"the worker's Python has no package divvy_jobs: {python}",
            causes=ran.stderr.strip().splitlines()[-1:],
            hint="name its wheel among the packages of the runtime environment, under `pip` or `uv`",
        )
