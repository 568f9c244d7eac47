"""Slices for Ray's tasks and actors: `@ray.remote(num_gpus=0.25)` has a quarter of the card's memory and time, and no more.

Each node is started with the plugin:

    RAY_RUNTIME_ENV_PLUGINS='[{"class": "divvy_jobs.ray.plugin.Plugin"}]' ray start ...

and the driver turns it on with one line:

    ray.init(runtime_env=divvy_jobs.ray.runtime_env())
"""

from __future__ import annotations

import os
from typing import Any

#: What Ray reads when a node starts: the plugin's class.
PLUGINS = '[{"class": "divvy_jobs.ray.plugin.Plugin"}]'


def runtime_env(**options: Any) -> dict[str, Any]:
    """The runtime environment of a job whose tasks and actors have slices.

    Tasks and actors then fail on a node whose Ray was started without the plugin. A node without this package refuses the
    job's workers. A runtime environment of `{"divvy": {}}` alone does the same where the plugin is, and nothing where it is not.

    Args:
        **options: see `divvy_jobs.ray.options.Options`: `compute`, `cap`, `isolation`, `wait_s`, `metrics_s`.
    """
    from divvy_jobs.ray.options import Options

    Options.of(options)
    return {"divvy": options, "worker_process_setup_hook": "divvy_jobs.ray.is_set_up"}


def is_set_up() -> None:
    """Has all that a worker of Ray's is to run fail, where it would have a device without limits.

    A worker that failed here would be said to have died, and no more: so its tasks and actors do, with the reason.

    Raises:
        Fault: this Ray calls functions in a way that is not known here.
    """
    from divvy_jobs.agent import Fault

    if "DIVVY_RAY" not in os.environ:
        from divvy_jobs.ray import worker

        worker.refuse(
            Fault(
                f"Ray was started without Divvy's plugin on {os.uname().nodename}",
                hint=f"start it with RAY_RUNTIME_ENV_PLUGINS='{PLUGINS}' in its environment",
            )
        )
