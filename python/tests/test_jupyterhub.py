"""JupyterHub with its own proxy, by its REST API: users share a card, and each keeps to a slice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import TOKEN, Hub, Kernel

from divvy_jobs import agent

GIB = 1 << 30
TAKE_ALL = """
import cuda
assert cuda.start() == 0
count = 0
while (status := cuda.allocate(1 << 30)) == 0:
    count += 1
print(count, status)
"""


def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    proxy = Path(os.environ["DIVVY_TEST_PROXY"])
    running = Hub(tmp_path_factory.mktemp("hub"), proxy)
    try:
        until("the hub answers", running.is_up)
        yield running
    finally:
        running.end()


def slices() -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in agent.command("ps")["items"]}


def test_users_kernels_are_in_their_slices(hub: Hub) -> None:
    for user in ("alice", "bob"):
        status, said = hub.spawn(user)
        assert status == 201, f"{said} {hub.log()}"
    assert {name: record["memory_limit_bytes"] for name, record in slices().items()} == {
        "jupyter-alice": 30 * GIB,
        "jupyter-bob": 30 * GIB,
    }
    alice, bob = Kernel(hub, "alice"), Kernel(hub, "bob")

    # A third does not fit: the user is told who has the card.
    status, said = hub.spawn("carol")
    assert status >= 400 and "carol" not in str(slices()), said
    assert "No slice of the GPU: D0012" in f"{said}{hub.log()}"

    # One takes all there is, and the other goes on.
    loaded = bob.run("%load_ext divvy_jobs")
    assert loaded.startswith("slice jupyter-bob: 0 MiB of 30.0 GiB") and "(30% promised)" in loaded, loaded
    assert alice.run(TAKE_ALL).strip() in ("29 2", "30 2")
    held = bob.run("import cuda\nassert cuda.start() == 0\nassert cuda.allocate(2 << 30) == 0")
    assert held.startswith("slice jupyter-bob: 2."), held
    assert bob.run("print(1 + 1)").strip() == "2", "a cell that takes nothing has no line"
    # A second kernel of hers has the same slice.
    second = Kernel(hub, "alice").run(TAKE_ALL)
    assert second.strip() == "0 2" or "AssertionError" in second, second
    assert alice.run("print('alive')").strip() == "alive"
    assert bob.run("%divvy").startswith("slice jupyter-bob: 2.")
    assert "no builtin" not in bob.run("%unload_ext divvy_jobs")

    shown = cull(hub, "--idle", "1s")
    until("both are shown", lambda: all(name in read(shown) for name in ("alice: ", "bob: ")))
    shown.kill()
    assert "stopped" not in read(shown)
    # Bob gives his memory back, and is let be.
    bob.end()
    until("bob holds nothing", lambda: slices()["jupyter-bob"]["memory_used_bytes"] == 0)
    stopping = cull(hub, "--idle", "1s", "--stop")
    until("alice's server is stopped", lambda: not hub.ask("GET", "/users/alice")[1]["servers"])
    stopping.kill()
    assert "alice" in read(stopping) and hub.ask("GET", "/users/bob")[1]["servers"]
    # The slice stays for her next server.
    until("what she held is back", lambda: slices()["jupyter-alice"]["memory_used_bytes"] == 0)


def cull(hub: Hub, *arguments: str) -> subprocess.Popen[bytes]:
    log = (hub.folder / "cull").open("wb")
    environment = {**os.environ, "JUPYTERHUB_API_URL": hub.api, "JUPYTERHUB_API_TOKEN": TOKEN}
    command = [sys.executable, "-m", "divvy_jobs.cull", "--every", "0.2s", *arguments]
    started = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    started.args = str(hub.folder / "cull")
    return started


def read(process: subprocess.Popen[bytes]) -> str:
    return Path(str(process.args)).read_text()


def test_containers_have_the_slice_as_a_device() -> None:
    from jupyterhub.spawner import Spawner

    from divvy_jobs.jupyterhub import DivvyContainerMixin

    class Docker(DivvyContainerMixin, Spawner):  # type: ignore[misc]
        async def poll(self) -> int | None:
            return 0

    config = Docker().divvy_host_config("divvy.dev/slice=jupyter-alice")
    [request] = config["device_requests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["divvy.dev/slice=jupyter-alice"])
    assert Docker(divvy_memory="4GiB").divvy_terms()["memory"] == "4GiB"
    with pytest.raises(agent.Fault, match="no memory is configured for users' slices"):
        Docker().divvy_terms()


def test_another_user_s_slice_is_made_as_that_user() -> None:
    from divvy_jobs.lasting import as_user

    if os.geteuid() != 0:
        assert as_user("daemon") == {}
        return
    options = as_user("daemon")
    assert options["user"] == 1 and options["env"]["USER"] == "daemon" and "HOME" in options["env"]
    assert as_user("root") == {} and as_user(None) == {}
    with pytest.raises(agent.Fault, match="this machine has no user 'no-such-user'"):
        as_user("no-such-user")
