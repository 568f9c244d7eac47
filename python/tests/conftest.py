"""A Ray cluster of one node for all tests: it takes seconds to start."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tenants import slices, until

HERE = Path(__file__).parent


def ray(*arguments: str, plugin: bool = True, **variables: str) -> None:
    """Runs Ray's own command, as a node's administrator does."""
    environment = {**os.environ, **variables, "RAY_USAGE_STATS_ENABLED": "0"}
    # Ray would start a worker for each processor before there is a task.
    environment |= {"RAY_enable_worker_prestart": "false", "RAY_prestart_worker_first_driver": "false"}
    environment |= {"RAY_raylet_start_wait_time_s": "120"}
    if plugin:
        environment["RAY_RUNTIME_ENV_PLUGINS"] = json.dumps([{"class": "divvy_jobs.ray.plugin.Plugin"}])
    command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def begin_loopback() -> None:
    """Starts the loopback interface, which a new network namespace has and leaves down."""
    form, read, write, is_up = "16sh22x", 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack(form, fcntl.ioctl(any_socket, read, struct.pack(form, b"lo", 0)))[1]
        if not flags & is_up:
            fcntl.ioctl(any_socket, write, struct.pack(form, b"lo", flags | is_up))


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, Any]]:
    """A head with two emulated devices, which this process is connected to as a driver with slices."""
    import ray as library

    import divvy_jobs.ray

    begin_loopback()
    port, metrics = free_port(), free_port()
    # Short: Ray puts sockets there, and their paths are long.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        address = f"127.0.0.1:{port}"
        ray(
            *("start", "--head", "--node-ip-address", "127.0.0.1", "--port", str(port)),
            *("--num-cpus", "4", "--num-gpus", "2", "--resources", json.dumps({"gpu_memory": 80 << 30})),
            *("--include-dashboard", "false", "--temp-dir", folder, "--metrics-export-port", str(metrics)),
        )
        session = Path(folder, "session_latest").resolve().name
        try:
            environment = divvy_jobs.ray.runtime_env(metrics_s=0.5, wait_s=60)
            environment["env_vars"] = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
            # Ray 2.38 adds entries of its own to what it is given.
            library.init(address=address, runtime_env=copy.deepcopy(environment), log_to_driver=False)
            yield {
                "address": address,
                "metrics": metrics,
                "library": library,
                "folder": folder,
                "environment": environment,
            }
        finally:
            library.shutdown()
            end(folder, session)


@pytest.fixture
def library(cluster: dict[str, Any]) -> Any:
    """Ray, with nothing of the test before left in slices."""
    until("the slices of the test before end", lambda: not slices())
    return cluster["library"]


def end(folder: str, session: str) -> None:
    """Ends the processes of this cluster, and no other's: `ray stop` would end all of this user's."""
    import psutil

    def is_ours(process: Any) -> bool:
        try:
            return any(session in word or f"{folder}/" in word for word in process.cmdline())
        except psutil.Error:
            return False

    ours = [process for process in psutil.process_iter() if process.pid != os.getpid() and is_ours(process)]
    ours += [child for process in ours for child in _children(process)]
    for process in ours:
        try:
            process.kill()
        except psutil.Error:
            pass
    psutil.wait_procs(ours, timeout=30)


def _children(process: Any) -> list[Any]:
    import psutil

    try:
        found: list[Any] = process.children(recursive=True)
    except psutil.Error:
        found = []
    return found
