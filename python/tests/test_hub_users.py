"""JupyterHub as root, for users of the machine: each server runs as its user, in a slice of that user's own."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import Hub, Kernel
from test_jupyterhub import TAKE_ALL, slices, until

GIB = 1 << 30
USERS = os.environ["DIVVY_TEST_USERS"].split(",")
#: Where users find Python, its packages and divvy_jobs: the repository's folders may be closed to them.
OPEN = Path(os.environ["DIVVY_TEST_OPEN"])

SPAWNER = """
from divvy_jobs.jupyterhub import DivvyLocalProcessSpawner
c.JupyterHub.spawner_class = DivvyLocalProcessSpawner
c.DivvyLocalProcessSpawner.cmd = [{python!r}, "-m", "jupyterhub.singleuser"]
c.DivvyLocalProcessSpawner.args = ["--ServerApp.log_level=WARN"]
c.DivvyLocalProcessSpawner.env_keep = ["PATH", "LANG"]
# A Python whose own library is shared would take the system's.
c.DivvyLocalProcessSpawner.environment = {{
    "PYTHONHOME": {home!r},
    "PYTHONPATH": {path!r},
    "LD_LIBRARY_PATH": {home!r} + "/lib",
}}
c.DivvyLocalProcessSpawner.divvy_memory = "30GiB"
c.DivvyLocalProcessSpawner.divvy_compute = "30%"
"""


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [OPEN / "env/lib" / version / "site-packages", OPEN / "python", OPEN / "python/tests"]
    more = SPAWNER.format(
        python=str(OPEN / "base/bin" / version), home=str(OPEN / "base"), path=":".join(map(str, packages))
    )
    running = Hub(tmp_path_factory.mktemp("hub"), Path(os.environ["DIVVY_TEST_PROXY"]), more)
    try:
        until("the hub answers", running.is_up)
        yield running
    finally:
        for user in USERS:
            running.ask("DELETE", f"/users/{user}/server")
        running.end()


def test_each_user_s_notebook_is_in_a_slice_of_that_user_s_own(hub: Hub) -> None:
    for user in USERS:
        status, said = hub.spawn(user)
        assert status == 201, f"{said} {hub.log()}"
    own: dict[str, Any] = {user: slices()[f"jupyter-{user}"] for user in USERS}
    assert {user: record["uid"] for user, record in own.items()} == {user: pwd.getpwnam(user).pw_uid for user in USERS}
    assert {record["memory_limit_bytes"] for record in own.values()} == {30 * GIB}
    alice, bob = (Kernel(hub, user) for user in USERS)
    for user, kernel in zip(USERS, (alice, bob)):
        assert kernel.run("import os; print(os.getuid())").strip() == str(pwd.getpwnam(user).pw_uid)
    held = "import cuda\nassert cuda.start() == 0\nassert cuda.allocate(2 << 30) == 0\nprint('held')"
    assert bob.run(held).strip() == "held"
    assert alice.run(TAKE_ALL).strip() in ("29 2", "30 2")
    # His notebook goes on, and her slice is nothing to him.
    assert bob.run("assert cuda.allocate(2 << 30) == 0\nprint(cuda.doubled())").strip() == "512"
    join = f"import subprocess; r = subprocess.run(['divvy', 'run', '--slice', {own[USERS[0]]['id']!r}, '--', 'true']"
    said = bob.run(f"{join}, capture_output=True, text=True); print(r.returncode, r.stderr)")
    assert not said.startswith("0 ") and "error[D" in said, said
    assert slices()[f"jupyter-{USERS[1]}"]["memory_used_bytes"] >= 4 * GIB
