"""A JupyterHub for one test: its own folder, ports of loopback, configurable-http-proxy before it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from conftest import free_port

TOKEN = "a-token-of-this-test-alone"

CONFIG = """
import os
from jupyterhub.spawner import SimpleLocalProcessSpawner
from divvy_jobs.jupyterhub import DivvyMixin

class Spawner(DivvyMixin, SimpleLocalProcessSpawner):
    # Users of this hub are no users of the machine.
    def divvy_user(self):
        return None

c.JupyterHub.spawner_class = Spawner
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.command = {proxy}
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/secret"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/home-{{username}}"
c.Spawner.args = ["--allow-root", "--ServerApp.log_level=WARN"]
c.Spawner.http_timeout = c.Spawner.start_timeout = 120
c.Spawner.env_keep = ["PATH", "PYTHONPATH", "LANG"]
c.Spawner.divvy_memory = "30GiB"
c.Spawner.divvy_compute = "30%"
c.JupyterHub.services = [{{"name": "test", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [
    {{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers", "access:servers"]}}
]
"""


class Hub:
    """A hub that runs."""

    def __init__(self, folder: Path, proxy: Path, more: str = "") -> None:
        """`more` is Python for the end of the configuration."""
        self.folder, self.port, hub_port, proxy_port = folder, free_port(), free_port(), free_port()
        config = CONFIG.format(
            port=self.port,
            hub_port=hub_port,
            proxy_port=proxy_port,
            proxy=["node", str(proxy)],
            folder=folder,
            token=TOKEN,
        )
        (folder / "config.py").write_text(config + more)
        self.api = f"http://127.0.0.1:{hub_port}/hub/api"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("jupyterhub")), "-f", str(folder / "config.py")],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )

    def log(self) -> str:
        """What the hub and its servers said."""
        return (self.folder / "log").read_text(errors="replace")

    def ask(self, method: str, path: str) -> tuple[int, Any]:
        """The status and the answer of the hub's API."""
        request = urllib.request.Request(self.api + path, method=method, data=b"" if method == "POST" else None)
        request.add_header("Authorization", f"token {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def is_up(self) -> bool:
        """Whether it answers."""
        assert self._process.poll() is None, self.log()
        try:
            return self.ask("GET", "/")[0] == 200
        except OSError:
            return False

    def spawn(self, user: str) -> tuple[int, Any]:
        """Adds a user and starts the server. Waits until it is ready or has failed: the last answer."""
        self.ask("POST", f"/users/{user}")
        status, said = self.ask("POST", f"/users/{user}/server")
        while status in (201, 202):
            status, said = self.ask("GET", f"/users/{user}")
            server = said["servers"].get("")
            if server is None:
                return 500, said
            if server["ready"]:
                return 201, said
            status = 202
            time.sleep(0.1)
        return status, said

    def end(self) -> None:
        """Ends it with its servers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()


class Kernel:
    """A kernel of a user's server."""

    def __init__(self, hub: Hub, user: str) -> None:
        self._server = f"127.0.0.1:{hub.port}/user/{user}"
        request = urllib.request.Request(f"http://{self._server}/api/kernels", data=b"{}", method="POST")
        request.add_header("Authorization", f"token {TOKEN}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.id: str = json.loads(answer.read())["id"]

    def end(self) -> None:
        """Ends it, as a user does by the menu."""
        request = urllib.request.Request(f"http://{self._server}/api/kernels/{self.id}", method="DELETE")
        request.add_header("Authorization", f"token {TOKEN}")
        urllib.request.urlopen(request, timeout=60).close()

    def run(self, code: str) -> str:
        """What a cell prints, and the name of the exception that ended it."""
        return asyncio.run(self._run(code))

    async def _run(self, code: str) -> str:
        from tornado.httpclient import HTTPRequest
        from tornado.websocket import websocket_connect

        request = HTTPRequest(
            f"ws://{self._server}/api/kernels/{self.id}/channels", headers={"Authorization": f"token {TOKEN}"}
        )
        socket = await websocket_connect(request)
        which = uuid.uuid4().hex
        header = {"msg_id": which, "msg_type": "execute_request", "username": "", "session": which, "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await socket.write_message(json.dumps(message))
        printed = ""
        while True:
            text = await asyncio.wait_for(socket.read_message(), 120)
            assert text is not None, "the kernel's server closed the connection"
            answer = json.loads(text)
            if answer["parent_header"].get("msg_id") != which:
                continue
            if answer["msg_type"] == "stream":
                printed += answer["content"]["text"]
            if answer["msg_type"] == "error":
                printed += f"{answer['content']['ename']}: {answer['content']['evalue']}"
            if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
                socket.close()
                return printed
