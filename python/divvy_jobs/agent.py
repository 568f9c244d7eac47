"""Divvy's agent, as a program talks to it: HTTP and JSON over a unix socket.

Who a caller is, and what it may do, the agent takes from the kernel: there is no token to keep.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

#: Seconds for an answer of the agent. It is generous: a driver that is just loaded takes some.
TIMEOUT_S = 30.0


class Fault(RuntimeError):
    """What the agent or the program `divvy` refused, with its code, as `D0012`; `divvy explain` tells more of it."""

    def __init__(self, message: str, code: str = "", causes: Sequence[str] = (), hint: str = "") -> None:
        self.message, self.code, self.causes, self.hint = message, code, tuple(causes), hint
        super().__init__(message, code, tuple(causes), hint)

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}" if self.code else self.message
        if self.causes:
            text += f" ({'; '.join(self.causes)})"
        return f"{text}. {self.hint[:1].upper()}{self.hint[1:]}" if self.hint else text

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Fault:
        """The fault of a document of kind `Error`."""
        return cls(
            str(document.get("message", "the agent refused")),
            str(document.get("code", "")),
            [str(cause) for cause in document.get("causes", [])],
            str(document.get("hint") or ""),
        )


def program() -> str:
    """The program `divvy`: beside this Python, or on the PATH.

    Raises:
        Fault: it is at neither place.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "divvy")
    found = beside if os.access(beside, os.X_OK) else shutil.which("divvy")
    if found is None:
        raise Fault(
            f"the program divvy is missing on {socket.gethostname()}",
            hint="install Divvy on each machine with a GPU: its package, or `pip install` of its wheel",
        )
    return found


def command(*arguments: str, options: Mapping[str, Any] | None = None) -> Any:
    """What `divvy ARGUMENTS -o json` prints, parsed. `options` are those of `subprocess.run`: a user, an environment.

    Raises:
        Fault: `divvy` is missing, or refused.
    """
    ran = subprocess.run(
        [program(), "-o", "json", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        **(options or {}),
    )
    text = ran.stdout or ran.stderr
    try:
        document = json.loads(text)
    except ValueError:
        said = (ran.stderr or ran.stdout).strip()
        raise Fault(f"`divvy {' '.join(arguments[:2])}` failed: {said[:500]}") from None
    if ran.returncode != 0:
        raise Fault.of(document)
    return document


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("divvy", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Agent:
    """The agent of a run directory."""

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Asks, and gives the document of the answer.

        Raises:
            Fault: the agent refused, or none answers.
        """
        connection = _Connection(os.path.join(self.run_dir, "agent.sock"))
        try:
            content = None if body is None else json.dumps(body)
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            document = json.loads(response.read() or b"{}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Fault(
                f"no agent of Divvy answers on {self.run_dir}",
                "D0030",
                [str(error)],
                "`divvy agent status` tells why; `systemctl start divvy-agent` starts the machine's",
            ) from error
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise Fault.of(document)
        return cast("dict[str, Any]", document)

    def devices(self) -> list[dict[str, Any]]:
        """The devices of this machine."""
        return cast("list[dict[str, Any]]", self.ask("GET", "/v1/devices")["items"])

    def slices(self) -> list[dict[str, Any]]:
        """The slices, of all users: of others' with their figures only."""
        return cast("list[dict[str, Any]]", self.ask("GET", "/v1/slices")["items"])

    def slice(self, which: str) -> dict[str, Any]:
        """A slice, by id or name."""
        return self.ask("GET", f"/v1/slices/{quote(which, safe='')}")

    def compute(self) -> list[dict[str, Any]]:
        """What each slice had of its devices' time."""
        return cast("list[dict[str, Any]]", self.ask("GET", "/v1/compute")["items"])

    def create(self, request: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
        """Makes a lasting slice that goes with this process. `asked` has the fields beside the request."""
        body = {"request": request, "command": [], "lasting": True, "attended": True, **asked}
        return self.ask("POST", "/v1/slices", body)

    def resize(self, which: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Changes a slice."""
        return self.ask("PATCH", f"/v1/slices/{quote(which, safe='')}", change)

    def delete(self, which: str) -> None:
        """Deletes a slice in which nothing runs."""
        self.ask("DELETE", f"/v1/slices/{quote(which, safe='')}")


def own_pid() -> int:
    """This process, for names that no other has at the same time."""
    return os.getpid()
