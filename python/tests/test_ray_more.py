"""Ray, unmodified: what takes many of its workers, or another node."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import ray
from tenants import CARD, GIB, actor, slices, until

from divvy_jobs import agent


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

    serve.start(proxy_location="Disabled")
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
    # An actor with a GPU holds a processor too where nothing is said, and this cluster has four.
    many = [kind.options(num_gpus=1 / 16, num_cpus=0).remote() for _ in range(16)]
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


def test_each_actor_sees_the_card_that_ray_chose(library: Any) -> None:
    kind = actor(library)
    first, second = (kind.options(num_gpus=1).remote() for _ in range(2))
    assert library.get([first.start.remote(), second.start.remote()]) == [0, 0]
    places = library.get([first.where.remote(), second.where.remote()])
    devices = {device["index"]: device["uuid"] for device in agent.command("devices")["items"]}
    assert sorted(ids for _, _, ids in places) == [["0"], ["1"]]
    for _, shown, [index] in places:
        assert shown == devices[int(index)]
    library.kill(first)
    library.kill(second)
    both = kind.options(num_gpus=2).remote()
    assert library.get(both.where.remote())[1] == f"{devices[0]},{devices[1]}"


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


def test_a_node_without_the_plugin_or_the_package_is_refused(library: Any, cluster: dict[str, Any]) -> None:
    without = {"PYTHONPATH": ""}
    resources = ("--num-cpus", "4", "--num-gpus", "1", "--resources", '{"bare": 4}')
    more = ("--node-ip-address", "127.0.0.1", "--address", cluster["address"])
    ray("start", *more, *resources, plugin=False, **without)
    until("the node is there", lambda: library.cluster_resources().get("bare") == 4)
    task = library.remote(num_gpus=0.25, resources={"bare": 1}, max_retries=0)(lambda: 1)
    with pytest.raises(Exception, match="Ray was started without Divvy's plugin") as said:
        library.get(task.remote(), timeout=100)
    assert "RAY_RUNTIME_ENV_PLUGINS" in str(said.value)

    class Bare:
        def total(self) -> int:
            return 1

    tenant = library.remote(num_gpus=0.25, resources={"bare": 1})(Bare).remote()
    with pytest.raises(Exception, match="Ray was started without Divvy's plugin"):
        library.get(tenant.total.remote(), timeout=100)

    # A job that brings no package along finds none there: its worker ends before any task, and its log says why.
    program = """
import ray, sys, divvy_jobs.ray
ray.init(address=sys.argv[1], runtime_env=divvy_jobs.ray.runtime_env(), log_to_driver=False)
task = ray.remote(num_gpus=0.25, resources={"bare": 1}, max_retries=0)(lambda: print("ran") or 1)
print("answer", ray.get(task.remote(), timeout=100))
"""
    command = [sys.executable, "-c", program, cluster["address"]]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert ran.returncode != 0 and "answer" not in ran.stdout, ran.stdout
    logs = Path(cluster["folder"]).rglob("logs/*worker*")
    said = [path.name for path in logs if "No module named 'divvy_jobs'" in path.read_text(errors="replace")]
    assert said, ran.stderr
