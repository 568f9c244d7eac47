"""What needs no cluster: what is asked for, and what is refused before anything starts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from divvy_jobs.agent import Fault
from divvy_jobs.cull import Watch, is_of, seconds
from divvy_jobs.lasting import LONGEST, name_of
from divvy_jobs.ray.__main__ import usable_bytes
from divvy_jobs.ray.options import Options
from divvy_jobs.ray.request import Assigned, parts, request, visible

GIB = 1 << 30
DEVICES = [
    {"index": index, "uuid": uuid, "memory_total_bytes": memory * GIB}
    for index, uuid, memory in [(0, "GPU-aa11", 80), (1, "GPU-aa22", 40), (2, "GPU-bb33", 40)]
]


def asked(gpus: float, memory: int = 0, shown: str | None = "0", **options: Any) -> dict[str, Any]:
    return request(Assigned(gpus, memory), visible(DEVICES, shown), Options.of(options))


def test_parts_of_a_card_are_never_more_than_the_card() -> None:
    for count in range(1, 200):
        assert parts(1 / count) * count <= 10_000
    assert [parts(part) for part in (0.25, 0.29, 1 / 3, 1 / 16, 0.0001)] == [2500, 2900, 3333, 625, 1]


def test_a_part_asks_for_that_part_of_the_card_that_ray_chose() -> None:
    found = asked(0.25, shown="1")
    assert (found["memory"], found["compute"]) == ({"share": 2500}, 2500)
    assert (found["device"], found["more_devices"]) == ({"uuid": "GPU-aa22"}, [])


def test_whole_cards_are_asked_for_whole() -> None:
    found = asked(2, shown="2,0")
    assert "memory" not in found and found["compute"] == 10_000
    assert (found["device"], found["more_devices"]) == ({"uuid": "GPU-bb33"}, [{"uuid": "GPU-aa11"}])


def test_memory_comes_before_the_part_and_the_part_says_time() -> None:
    found = asked(0.1, 3 * GIB)
    assert (found["memory"], found["compute"]) == ({"bytes": 3 * GIB}, 1000)
    # Without a card it is that part of the smallest, and the agent chooses.
    found = asked(0, 4 * GIB, shown=None)
    assert found["compute"] == 1000 and "device" not in found
    assert asked(0.5, compute=30, cap="hard")["compute"] == 3000


def test_what_there_is_not_is_refused() -> None:
    for gpus, memory, shown, said in [
        (1.0, 0, "7", "device '7'"),
        (1.0, 0, "GPU-aa", "device 'GPU-aa'"),
        (2.0, 0, "0", "Ray assigned 2 GPUs, and shows 1"),
        (0.5, 0, "", "Ray assigned 0.5 GPUs, and shows 0"),
        (0.0, 81 * GIB, None, "no device here has as much"),
    ]:
        with pytest.raises(Fault, match=said):
            asked(gpus, memory, shown)
    assert asked(0, 60 * GIB, shown=None)["memory"] == {"bytes": 60 * GIB}, "the largest has it"


def test_options_are_checked() -> None:
    assert Options.read(Options.of({"cap": "hard", "compute": 12.5}).written()) == Options(cap="hard", compute=12.5)
    for value in (None, [], "on", {"mem": 1}, {"cap": "x"}, {"compute": 0}, {"compute": True}, {"wait_s": -1}, {"isolation": "vm"}):
        with pytest.raises(Fault, match="runtime_env: "):
            Options.of(value)


def test_a_fault_says_all_of_it() -> None:
    document = {"message": "no", "code": "D0012", "causes": ["slice a holds 1 GiB"], "hint": "see divvy ps"}
    assert str(Fault.of(document)) == "D0012: no (slice a holds 1 GiB). See divvy ps"


def test_no_two_users_have_one_slice() -> None:
    names = ["alice", "a b", "a-b", "a_b", "ä", "-a", "x" * 63, "x" * 64, "x" * 65, "a/../b", ""]
    found = [name_of(name) for name in names]
    assert len(set(found)) == len(names)
    assert found[0] == "alice" and found[6] == "x" * 63
    assert all(0 < len(name) <= LONGEST and name[0].isalnum() for name in found)


def test_idle_is_what_holds_memory_and_takes_no_time() -> None:
    watch = Watch()

    def look(now: float, memory: int, charged: int) -> dict[str, float]:
        return watch.idle(
            [{"id": "a", "memory_used_bytes": memory}], [{"slice_id": "a", "charged_ns": charged}], now
        )

    assert look(0, 1, 5) == {"a": 0}
    assert look(10, 1, 5) == {"a": 10}
    assert look(20, 1, 6) == {"a": 0}
    assert look(30, 0, 6) == {}, "it holds nothing"
    assert look(40, 1, 6) == {"a": 20}
    assert [seconds(text) for text in ("90s", "1.5m", "2h")] == [90, 90, 7200]


def test_a_slice_of_another_user_stops_no_server() -> None:
    servers = {"jupyter-daemon": ("daemon", ""), "jupyter-no-such": ("no-such", "")}
    assert is_of({"name": "jupyter-daemon", "uid": 1}, servers), "the user's"
    assert is_of({"name": "jupyter-daemon", "uid": os.getuid()}, servers), "the hub's"
    assert not is_of({"name": "jupyter-daemon", "uid": 54_321}, servers), "anyone may make one of that name"
    assert not is_of({"name": "jupyter-no-such", "uid": 54_321}, servers)
    assert not is_of({"name": "jupyter-other", "uid": 1}, servers)


def test_a_nodes_memory_is_what_programs_can_have_of_what_is_there_once() -> None:
    def device(total: int, hardware: dict[str, object] | None) -> dict[str, object]:
        return {"memory_total_bytes": total, "memory_reserved_bytes": 1, "hardware": hardware}

    divided = device(80, {"mig_mode": True, "mig_instance": None})
    instance = device(40, {"mig_mode": True, "mig_instance": {"profile": "3g.40gb"}})
    whole = device(80, {"mig_mode": False, "mig_instance": None})
    assert usable_bytes([divided, instance, whole]) == 39 + 79
    assert usable_bytes([{"memory_total_bytes": 16}]) == 16
