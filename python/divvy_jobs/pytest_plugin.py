"""`pytest -n 4 --divvy`: the workers of pytest-xdist share one card, each in a slice of a quarter of it.

Without `--divvy` it does nothing, and without xdist it refuses: one process would have the whole card either way.
"""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest

from divvy_jobs import agent
from divvy_jobs.agent import Fault


def pytest_addoption(parser: pytest.Parser) -> None:
    """The flags."""
    group = parser.getgroup("divvy", "slices of a GPU for the workers of pytest-xdist")
    group.addoption("--divvy", action="store_true", help="give each worker a slice, all of one size")
    group.addoption("--divvy-memory", metavar="SIZE", default="", help="memory of each: 2GiB [default: an equal part]")
    group.addoption("--divvy-device", metavar="SEL", default="", help="the device: index or UUID [default: one with space]")
    group.addoption("--divvy-cap", metavar="CAP", default="soft", choices=["soft", "hard"], help="soft or hard")


def pytest_configure(config: pytest.Config) -> None:
    """Refuses what makes no sense before tests are collected."""
    is_worker = hasattr(config, "workerinput")
    if config.getoption("--divvy") and not is_worker:
        if not config.pluginmanager.hasplugin("xdist"):
            raise pytest.UsageError("--divvy gives slices to the workers of pytest-xdist, which is not installed")
        if not config.getoption("numprocesses", default=None) and not config.getoption("tx", default=None):
            raise pytest.UsageError("--divvy gives slices to the workers of pytest-xdist: add -n 4, or run `divvy run pytest`")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Has each worker started in a slice, which ends with it."""
    if not config.getoption("--divvy"):
        return
    try:
        divvy = agent.program()
    except Fault as fault:
        raise pytest.UsageError(str(fault)) from None
    # Parts of 100, rounded down: all of them together are no more than the card.
    part = f"{int(10_000 / len(specs)) / 100:g}%"
    for place, spec in enumerate(specs):
        if not spec.popen:
            raise pytest.UsageError(f"--divvy gives slices to workers of this machine, and {spec} is none")
        words = [divvy, "run", "--memory", config.getoption("--divvy-memory") or part, "--compute", part]
        words += ["--cap", config.getoption("--divvy-cap"), "--name", f"pytest-{agent.own_pid()}-gw{place}"]
        if config.getoption("--divvy-device"):
            words += ["--device", config.getoption("--divvy-device")]
        spec.python = shlex.join([*words, "--", spec.python or sys.executable])
