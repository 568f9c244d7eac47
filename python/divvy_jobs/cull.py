"""`python -m divvy_jobs.cull`: shows which notebooks hold memory of a device and do not use it, and stops them if asked to.

As a service of the hub, which gives it a token and its address:

    c.JupyterHub.services = [{"name": "divvy-cull", "command": ["python", "-m", "divvy_jobs.cull", "--idle", "2h", "--stop"]}]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pwd
import re
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from divvy_jobs import agent, lasting
from divvy_jobs.agent import Agent, Fault

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_GIB = 1 << 30


def seconds(text: str) -> float:
    """Seconds of `90s`, `30m`, `2h`, `1d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 30m or 2h")
    return float(found[1]) * _UNITS[found[2]]


@dataclasses.dataclass
class Seen:
    """What is known of a slice."""

    #: Nanoseconds that it had of its device in all.
    charged_ns: int
    #: When that last changed, by a clock that only goes forward.
    changed_at: float


class Watch:
    """Since when slices have not used their device."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    def idle(self, slices: list[dict[str, Any]], compute: list[dict[str, Any]], now: float) -> dict[str, float]:
        """Seconds without use, by the id of a slice that holds memory. One that is seen first has not been idle."""
        charged: dict[str, int] = {}
        for item in compute:
            which = str(item["slice_id"])
            charged[which] = charged.get(which, 0) + int(item["charged_ns"])
        found = {}
        for record in slices:
            which = str(record["id"])
            had = charged.get(which, 0)
            seen = self._seen.get(which)
            if seen is None or seen.charged_ns != had:
                seen = self._seen[which] = Seen(had, now)
            if int(record["memory_used_bytes"]) > 0:
                found[which] = now - seen.changed_at
        self._seen = {str(record["id"]): self._seen[str(record["id"])] for record in slices}
        return found


class Hub:
    """The hub's REST API."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url.rstrip("/"), token

    def ask(self, method: str, path: str) -> Any:
        """Asks; the answer's JSON, None where it has none."""
        request = urllib.request.Request(self._url + path, method=method)
        request.add_header("Authorization", f"token {self._token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def servers(self, template: str) -> dict[str, tuple[str, str]]:
        """User and name of each running server, by its slice's name. Servers that share a slice share a row."""
        found = {}
        for user in self.ask("GET", "/users?state=active"):
            for name in user.get("servers", {}):
                text = template.format(username=user["name"], servername=name or "default")
                found[lasting.name_of(text)] = (str(user["name"]), str(name))
        return found

    def stop(self, user: str, name: str) -> None:
        """Stops a server."""
        place = f"/users/{quote(user, safe='')}/server"
        self.ask("DELETE", f"{place}s/{quote(name, safe='')}" if name else place)


def is_of(record: Mapping[str, Any], servers: Mapping[str, tuple[str, str]]) -> bool:
    """Whether a slice is a server's. Any user may make one of that name: it has to be the server's user's, or the hub's."""
    if record["name"] not in servers:
        return False
    try:
        owners = {os.getuid(), pwd.getpwnam(servers[str(record["name"])][0]).pw_uid}
    except KeyError:
        owners = {os.getuid()}
    return record["uid"] in owners


def look(agent_: Agent, hub: Hub, watch: Watch, arguments: argparse.Namespace, now: float) -> list[str]:
    """One look: a line for each server whose slice holds memory; those that are idle for too long are stopped."""
    servers = hub.servers(arguments.slice)
    slices = [record for record in agent_.slices() if is_of(record, servers)]
    idle = watch.idle(slices, agent_.compute(), now)
    lines = []
    for record in slices:
        which = str(record["id"])
        if which not in idle:
            continue
        user, name = servers[str(record["name"])]
        line = f"{user}: {record['memory_used_bytes'] / _GIB:.2f} of {record['memory_limit_bytes'] / _GIB:.2f} GiB, "
        line += f"not used for {idle[which]:.0f} s"
        if arguments.stop and idle[which] >= arguments.idle:
            hub.stop(user, name)
            line += ": stopped"
        lines.append(line)
    return lines


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Looks again and again. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m divvy_jobs.cull", description=__doc__.split("\n\n")[0])
    parser.add_argument("--idle", type=seconds, default=3600.0, help="how long a device is not used, as 30m [default: 1h]")
    parser.add_argument("--stop", action="store_true", help="stop those servers; without it they are only shown")
    parser.add_argument("--every", type=seconds, default=60.0, help="time between two looks [default: 60s]")
    parser.add_argument("--slice", default="jupyter-{username}", help="the spawner's `divvy_slice` [default: %(default)s]")
    arguments = parser.parse_args()
    try:
        hub = Hub(environment["JUPYTERHUB_API_URL"], environment["JUPYTERHUB_API_TOKEN"])
    except KeyError as missing:
        print(f"divvy_jobs: {missing} is not set: run this as a service of the hub", file=sys.stderr)
        return 1
    watch = Watch()
    while True:
        try:
            here = Agent(agent.command("agent", "status")["run_dir"])
            for line in look(here, hub, watch, arguments, time.monotonic()):
                print(line, flush=True)
        except (Fault, OSError) as error:
            # The hub or the agent restarts: the next look tells.
            print(f"divvy_jobs: {error}", file=sys.stderr, flush=True)
        time.sleep(arguments.every)


if __name__ == "__main__":
    sys.exit(main())
