"""Slices of a GPU where jobs come from: Ray, JupyterHub, notebooks and pytest-xdist.

`divvy_jobs.ray` has a runtime-env plugin for Ray, `divvy_jobs.jupyterhub` spawners, and `divvy_jobs.notebook` the status line
of `%load_ext divvy_jobs`. Each needs the program `divvy` on the machine with the GPU, and is loaded by itself: none needs the
packages of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from divvy_jobs.agent import Agent, Fault

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Agent", "Fault", "load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext divvy_jobs`: a line below a cell says how much of the slice is in use."""
    from divvy_jobs import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext divvy_jobs`."""
    from divvy_jobs import notebook

    notebook.unload(shell)
