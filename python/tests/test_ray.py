"""Ray, unmodified: what a task or an actor was assigned is what its slice has."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ray

from divvy_jobs import agent
from divvy_jobs.agent import Fault

MIB = 1 << 20
GIB = 1 << 30
#: Memory of the emulated H100.
CARD = 81_559 * MIB


def slices() -> list[dict[str, Any]]:
    """The slices that there are."""
    found: list[dict[str, Any]] = agent.command("ps")["items"]
    return [record for record in found if record["name"].startswith("ray-")]


def until(what: str, holds: Callable[[], bool]) -> None:
    """Waits for a condition."""
    end_ = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end_, what
        time.sleep(0.05)


@pytest.fixture
def library(cluster: dict[str, Any]) -> Any:
    """Ray, with nothing of the test before left in slices."""
    until("the slices of the test before end", lambda: not slices())
    return cluster["library"]


def actor(library: Any) -> Any:
    """An actor that does to its device what it is told."""

    @library.remote
    class Tenant:
        def start(self) -> int:
            import cuda

            return cuda.start()

        def total(self) -> int:
            import cuda

            return cuda.total()

        def take_all(self) -> int:
            """Allocates until that is refused: how many GiB there were."""
            import cuda

            count = 0
            while (status := cuda.allocate(GIB)) == 0:
                count += 1
            assert status == cuda.OUT_OF_MEMORY
            return count

        def add(self) -> float:
            """Computes something on the device."""
            import numpy
            from numba import cuda as numba

            @numba.jit
            def double(values):  # type: ignore[no-untyped-def]
                place = numba.grid(1)
                if place < values.size:
                    values[place] *= 2

            values = numba.to_device(numpy.ones(256))
            double[1, 256](values)
            return float(values.copy_to_host().sum())

        def where(self) -> tuple[int, str, list[str]]:
            import ray as inside

            ids = inside.get_runtime_context().get_accelerator_ids()["GPU"]
            return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], ids

    return Tenant


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


def test_replicas_of_serve_have_a_half_each(library: Any) -> None:
    """ray-project/ray#41432."""
    from ray import serve

    @serve.deployment(num_replicas=2, ray_actor_options={"num_gpus": 0.5, "num_cpus": 0})
    class Model:
        def __init__(self) -> None:
            import cuda

            assert cuda.start() == 0

        def __call__(self) -> tuple[int, int]:
            import cuda

            while cuda.allocate(GIB) == 0:
                pass
            return os.getpid(), cuda.total()

    handle = serve.run(Model.bind(), name="model", route_prefix=None)
    try:
        assert len(slices()) == 2
        seen: dict[int, int] = {}
        until("both replicas answer", lambda: seen.update([handle.remote().result()]) or len(seen) == 2)
        assert set(seen.values()) == {CARD // 2}
    finally:
        serve.shutdown()


def test_sixteen_actors_share_a_card(library: Any) -> None:
    kind = actor(library)
    many = [kind.options(num_gpus=1 / 16).remote() for _ in range(16)]
    assert library.get([one.start.remote() for one in many]) == [0] * 16
    assert set(library.get([one.total.remote() for one in many])) == {CARD // 16}
    found = slices()
    assert len(found) == 16
    assert {record["device_uuid"] for record in found} == {found[0]["device_uuid"]}
    assert sum(record["memory_limit_bytes"] for record in found) <= CARD
    assert library.get(many[0].take_all.remote()) == 4
    assert library.get(many[15].take_all.remote()) == 4


def test_a_reused_worker_has_what_its_next_task_was_assigned(library: Any) -> None:
    @library.remote(num_gpus=0.25, max_calls=0)
    def task() -> tuple[int, int]:
        import cuda

        assert cuda.start() == 0
        return os.getpid(), cuda.total()

    pid, total = library.get(task.remote())
    assert total == CARD // 4
    assert library.get(task.remote()) == (pid, CARD // 4)
    with pytest.raises(Exception, match="already, and its next task has another share"):
        library.get(task.options(num_gpus=0.5).remote())
    os.kill(pid, 9)


def test_a_worker_that_has_no_card_has_no_slice_and_no_device(library: Any) -> None:
    @library.remote
    def task() -> int:
        import cuda

        return cuda.start()

    import cuda

    assert library.get(task.remote()) == cuda.NOT_READY
    assert not slices()


def test_each_actor_sees_the_card_that_ray_chose(library: Any) -> None:
    kind = actor(library)
    first, second = (kind.options(num_gpus=1).remote() for _ in range(2))
    assert library.get([first.start.remote(), second.start.remote()]) == [0, 0]
    places = library.get([first.where.remote(), second.where.remote()])
    devices = {device["index"]: device["uuid"] for device in agent.command("devices")["items"]}
    assert sorted(ids for _, _, ids in places) == [["0"], ["1"]]
    for _, shown, [index] in places:
        assert shown == devices[int(index)]
    both = kind.options(num_gpus=2)
    library.kill(first)
    library.kill(second)
    assert library.get(both.remote().where.remote())[1] == f"{devices[0]},{devices[1]}"


def test_a_placement_group_s_bundles_have_slices(library: Any) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"GPU": 0.5, "CPU": 1}])
    library.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(placement_group=group)
    tenant = actor(library).options(num_gpus=0.5, num_cpus=1, scheduling_strategy=strategy).remote()
    assert library.get(tenant.start.remote()) == 0
    assert library.get(tenant.total.remote()) == CARD // 2
    remove_placement_group(group)


def test_memory_of_a_card_is_a_resource(library: Any) -> None:
    kind = actor(library)
    tenant = kind.options(resources={"gpu_memory": 4 * GIB}).remote()
    assert library.get(tenant.start.remote()) == 0
    assert library.get(tenant.total.remote()) == 4 * GIB
    both = kind.options(num_gpus=0.1, resources={"gpu_memory": 3 * GIB}).remote()
    assert library.get(both.start.remote()) == 0
    assert library.get(both.total.remote()) == 3 * GIB
    assert sorted(record["compute"] for record in slices()) == [4 * GIB * 10_000 // CARD, 1000]


def test_shares_of_time_are_those_of_the_cards(library: Any) -> None:
    kind = actor(library)
    many = [kind.options(num_gpus=part).remote() for part in (0.3, 0.7)]
    assert library.get([one.start.remote() for one in many]) == [0, 0]
    assert sorted(record["compute"] for record in slices()) == [3000, 7000]


def test_metrics_have_memory_and_share(library: Any, cluster: dict[str, Any]) -> None:
    tenant = actor(library).options(num_gpus=0.25).remote()
    assert library.get(tenant.start.remote()) == 0
    address = f"http://127.0.0.1:{cluster['metrics']}/metrics"

    def is_there() -> bool:
        with urllib.request.urlopen(address) as answer:
            lines = answer.read().decode().splitlines()
        values = {
            line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("ray_divvy_")
        }
        wanted = {"ray_divvy_memory_limit_bytes": float(CARD // 4), "ray_divvy_compute_share_ratio": 0.25}
        return wanted.items() <= values.items()

    until("Ray serves the slice's figures", is_there)


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


def test_a_task_is_told_who_has_the_memory(library: Any) -> None:
    agent.command("slice", "create", "other", "--memory", "80%", "--device", "0")
    agent.command("slice", "create", "another", "--memory", "80%", "--device", "1")
    try:
        task = library.remote(num_gpus=0.5)(lambda: 1)
        with pytest.raises(Exception, match=r"D0012: cannot reserve 39.8 GiB .*slice .*other holds"):
            library.get(task.options(runtime_env={"divvy": {"wait_s": 0.2}}).remote())
        kind = actor(library).options(num_gpus=0.5, runtime_env={"divvy": {"wait_s": 0.2}})
        with pytest.raises(Exception, match="D0012: cannot reserve"):
            library.get(kind.remote().start.remote())
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


def test_a_node_without_the_plugin_or_the_package_is_refused(library: Any, cluster: dict[str, Any]) -> None:
    without = {"PYTHONPATH": ""}
    resources = ("--num-cpus", "4", "--num-gpus", "1", "--resources", '{"bare": 4}')
    more = ("--node-ip-address", "127.0.0.1", "--address", cluster["address"])
    ray("start", *more, *resources, plugin=False, **without)
    until("the node is there", lambda: library.cluster_resources().get("bare") == 4)
    task = library.remote(num_gpus=0.25, resources={"bare": 1}, max_retries=0)(lambda: 1)
    with pytest.raises(Exception, match="Divvy's plugin"):
        library.get(task.remote(), timeout=100)


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


