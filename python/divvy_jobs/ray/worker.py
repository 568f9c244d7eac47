"""A worker of Ray's: `python -m divvy_jobs.ray.worker default_worker.py ...`, as the plugin has it started.

Ray starts a worker first and assigns resources to a task later. Two functions of Ray's are followed here: that which sets
CUDA_VISIBLE_DEVICES when a task or an actor begins, and that which finds the function to call. The first has the slice made; the
second has a refusal reach the caller as the task's own exception, and gives back what a reused worker no longer needs.
"""

from __future__ import annotations

import functools
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Generator
from typing import Any

from divvy_jobs.agent import Fault
from divvy_jobs.ray.holding import Holding


def hooks() -> tuple[Any, Any]:
    """The two places of Ray's that are followed: a module, and a class.

    Raises:
        Fault: this Ray has them elsewhere.
    """
    import ray
    import ray._private.utils as utils
    from ray._private.function_manager import FunctionActorManager

    if not hasattr(utils, "set_visible_accelerator_ids") or not hasattr(FunctionActorManager, "get_execution_info"):
        raise Fault(
            f"Ray {ray.__version__} assigns devices in a way that is not known here",
            hint="divvy_jobs is tested with Ray 2.38 and 2.60; a later divvy_jobs may know it",
        )
    return utils, FunctionActorManager


class _Worker:
    """The state of this process."""

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        # Why there is no slice; told by the function that needs it.
        self.refusal: Exception | None = None

    def begin(self) -> None:
        """A task or an actor begins, and Ray has set CUDA_VISIBLE_DEVICES."""
        import ray

        self.refusal = None
        try:
            context: Any = ray.get_runtime_context()
            resources = context.get_assigned_resources()
            title = context.get_task_name() if hasattr(context, "get_task_name") else "task"
            self.holding.take(resources, os.environ.get("CUDA_VISIBLE_DEVICES"), title or "task")
        except Exception as error:
            self.refusal = error
        else:
            if self.holding.slice is not None:
                from divvy_jobs.ray import metrics

                metrics.begin(self.holding)

    def followed(self, function: Callable[..., Any], is_actor: bool, is_last: bool) -> Callable[..., Any]:
        """The function of a task, or an actor's `__init__`, with what comes before and after it."""

        def after() -> None:
            # An actor keeps its slice, and a worker that ends is looked after by the agent.
            if not is_actor and not is_last:
                self.holding.give_back()

        def rest(items: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            try:
                return (yield from items)
            finally:
                after()

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if self.refusal is not None:
                raise self.refusal
            try:
                result = function(*arguments, **named)
            except BaseException:
                after()
                raise
            if inspect.isgenerator(result):
                return rest(result)
            after()
            return result

        call.__divvy__ = True  # type: ignore[attr-defined]
        return call


def follow(holding: Holding) -> None:
    """Follows Ray in this process."""
    utils, manager = hooks()
    worker = _Worker(holding)
    set_ids, get_info = utils.set_visible_accelerator_ids, manager.get_execution_info

    @functools.wraps(set_ids)
    def set_and_begin(*arguments: Any, **named: Any) -> Any:
        before = set_ids(*arguments, **named)
        worker.begin()
        return before

    @functools.wraps(get_info)
    def get_followed(self: Any, job_id: Any, descriptor: Any) -> Any:
        info = get_info(self, job_id, descriptor)
        is_actor = bool(descriptor.class_name)
        if hasattr(info.function, "__divvy__") or (is_actor and descriptor.function_name != "__init__"):
            return info
        return info._replace(function=worker.followed(info.function, is_actor, info.max_calls == 1))

    utils.set_visible_accelerator_ids = set_and_begin
    manager.get_execution_info = get_followed


def refuse(fault: Fault) -> None:
    """Has each task and actor of this process fail with this reason, before any of its code runs."""
    _, manager = hooks()
    get_info = manager.get_execution_info

    def refused(*_arguments: Any, **_named: Any) -> Any:
        raise fault

    @functools.wraps(get_info)
    def get_refused(self: Any, job_id: Any, descriptor: Any) -> Any:
        return get_info(self, job_id, descriptor)._replace(function=refused)

    manager.get_execution_info = get_refused


def main() -> None:
    """Becomes Ray's own worker."""
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    # As if Python had been started with the script.
    sys.path[0] = os.path.dirname(script)
    follow(Holding.of_worker())
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
