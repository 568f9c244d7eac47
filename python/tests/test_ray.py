"""Ray, unmodified: what a task or an actor was assigned is what its slice has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tenants import CARD, GIB, actor, slices, until

from divvy_jobs import agent
from divvy_jobs.agent import Fault


def test_a_part_of_a_card_is_that_part_of_its_memory_and_time(library: Any) -> None:
    @library.remote(num_gpus=0.25)
    def task() -> tuple[int, int]:
        import cuda

        assert cuda.start() == 0
        found = slices()
        assert len(found) == 1
        return cuda.total(), found[0]["compute"]

    assert library.get(task.remote()) == (CARD // 4, 2500)


def test_two_actors_that_would_take_all_have_their_own_out_of_memory(library: Any) -> None:
    """ray-project/ray#52915."""
    kind = actor(library)
    greedy, neighbour = (kind.options(num_gpus=0.5).remote() for _ in range(2))
    assert library.get([greedy.start.remote(), neighbour.start.remote()]) == [0, 0]
    # The context takes some of the 39.8 GiB.
    assert library.get(greedy.take_all.remote()) == 39
    assert library.get(neighbour.add.remote()) == 512
    assert library.get(neighbour.take_all.remote()) in (38, 39)
    assert library.get(greedy.take_all.remote()) == 0, "it has its own, and lives"


def test_a_worker_that_has_no_card_has_no_slice_and_no_device(library: Any) -> None:
    @library.remote
    def task() -> int:
        import cuda

        return cuda.start()

    import cuda

    assert library.get(task.remote()) == cuda.NOT_READY
    assert not slices()


def test_memory_of_a_card_is_a_resource(library: Any) -> None:
    kind = actor(library)
    tenant = kind.options(resources={"gpu_memory": 4 * GIB}).remote()
    assert library.get(tenant.start.remote()) == 0
    assert library.get(tenant.total.remote()) == 4 * GIB
    both = kind.options(num_gpus=0.1, resources={"gpu_memory": 3 * GIB}).remote()
    assert library.get(both.start.remote()) == 0
    assert library.get(both.total.remote()) == 3 * GIB
    assert sorted(record["compute"] for record in slices()) == [4 * GIB * 10_000 // CARD, 1000]


def test_actors_that_both_want_it_divide_the_time_by_their_shares(library: Any) -> None:
    @library.remote
    class Busy:
        def begin(self) -> None:
            # It ends with its standard input, and so with this worker.
            self.spinner = subprocess.Popen(["spinner", "1000"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    many = [Busy.options(num_gpus=part).remote() for part in (0.3, 0.7)]
    library.get([one.begin.remote() for one in many])
    assert sorted(record["compute"] for record in slices()) == [3000, 7000]
    connection = agent.Agent(os.environ["DIVVY_RUN_DIR"])
    last: list[Any] = []

    def divided() -> bool:
        ours = {record["id"]: record["compute"] for record in slices()}
        last[:] = [item for item in connection.compute() if item["slice_id"] in ours]
        return len(last) == 2 and all(
            abs((item.get("used_1s") or 0) - ours[item["slice_id"]]) < 600 for item in last
        )

    until(f"a second is divided by the shares: {last}", divided)
    for one in many:
        library.kill(one)


def test_a_job_that_does_not_ask_has_no_slice(library: Any, cluster: dict[str, Any]) -> None:
    program = """
import ray, sys, os
ray.init(address=sys.argv[1], log_to_driver=False)
@ray.remote(num_gpus=0.25)
def task():
    return os.environ.get("DIVVY_RAY"), os.environ.get("LD_PRELOAD"), os.environ["CUDA_VISIBLE_DEVICES"]
print(ray.get(task.remote()))
"""
    command = [sys.executable, "-c", program, cluster["address"]]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() in ("(None, None, '0')", "(None, None, '1')"), ran.stdout + ran.stderr


def test_a_program_that_names_nothing_of_divvy_has_slices_by_its_environment(
    library: Any, cluster: dict[str, Any]
) -> None:
    """As Ray's guide to accelerators has it: actors of a quarter that tell which card they have."""
    program = """
import os
import ray
ray.init(log_to_driver=False)
@ray.remote(num_gpus=0.25)
class FractionalActor:
    def ping(self):
        import cuda
        assert cuda.start() == 0
        return cuda.total(), cuda.doubled(), ray.get_runtime_context().get_accelerator_ids()["GPU"]
actors = [FractionalActor.remote() for _ in range(3)]
print(ray.get([actor.ping.remote() for actor in actors]))
"""
    variables = {"RAY_ADDRESS": cluster["address"]}
    variables["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps({"runtime_env": cluster["environment"]})
    ran = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    each = [(CARD // 4, 512, ["0"])] * 3
    assert ran.stdout.strip() in (str(each), str(each).replace("'0'", "'1'")), ran.stdout + ran.stderr


def test_a_task_is_told_who_has_the_memory(library: Any) -> None:
    agent.command("slice", "create", "other", "--memory", "80%", "--device", "0")
    agent.command("slice", "create", "another", "--memory", "80%", "--device", "1")
    try:
        task = library.remote(num_gpus=0.5)(lambda: 1)
        with pytest.raises(Exception, match=r"D0012: cannot reserve 39.8 GiB .*slice .*other holds"):
            library.get(task.options(runtime_env={"divvy": {"wait_s": 0.2}}).remote())
        kind = actor(library).options(num_gpus=0.5, runtime_env={"divvy": {"wait_s": 0.2}})
        # Held: Ray 2.38 forgets an actor whose handle is gone before its method's answer is there.
        tenant = kind.remote()
        with pytest.raises(Exception, match="D0012: cannot reserve"):
            library.get(tenant.start.remote())
        large = library.remote(resources={"gpu_memory": 80 * GIB})(lambda: 1)
        with pytest.raises(Exception, match="no device here has as much"):
            library.get(large.remote())
    finally:
        agent.command("slice", "delete", "other", "another")


def test_an_odd_option_is_refused_before_a_worker_starts(library: Any) -> None:
    task = library.remote(num_gpus=0.25)(lambda: 1)
    for options, said in [
        ({"caps": "hard"}, "has no field 'caps'"),
        ({"cap": "firm"}, "divvy.cap is 'soft' or 'hard', and not 'firm'"),
        ({"compute": "30%"}, "divvy.compute is a number of percent"),
    ]:
        with pytest.raises(Exception, match=said):
            library.get(task.options(runtime_env={"divvy": options}).remote())
    variables = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(Exception, match="Ray does not say which card a worker has"):
        library.get(task.options(runtime_env={"divvy": {}, "env_vars": variables}).remote())


def test_what_a_node_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from divvy_jobs.ray import links, plugin

    with monkeypatch.context() as patch:
        patch.setenv("DIVVY_RUN_DIR", "/proc/divvy")
        with pytest.raises(Fault, match="/proc/divvy"):
            plugin._look(sys.executable)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(Fault, match="the program divvy is missing on"):
            plugin._look(sys.executable)
    with pytest.raises(Fault, match="the worker's Python has no package divvy_jobs"):
        plugin._look("env -u PYTHONPATH /usr/bin/python3 -I")
    (tmp_path / f"divvy-ray-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"divvy-ray-{os.getuid()}").chmod(0o777)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with pytest.raises(Fault, match="not a folder of this user's alone"):
            links.base()
    with pytest.raises(ValueError, match="containers"):
        raise ValueError(str(_refusal({"divvy": {}, "image_uri": "x"})))


def _refusal(environment: dict[str, Any]) -> Fault | None:
    from divvy_jobs.ray.plugin import Plugin

    try:
        Plugin.validate(environment)
    except Fault as fault:
        return fault
    return None
