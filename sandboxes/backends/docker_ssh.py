"""A client of a Docker engine on another machine over the `ssh` program, as the `docker` command reaches it.

Every connection is an `ssh HOST docker system dial-stdio` of its own whose input and output are one end of a socket pair, so that the SDK,
and whoever attaches to a container, has a plain socket. (The SDK's own way over ssh needs paramiko, and its stream is no socket.)
"""

from __future__ import annotations

import socket
import subprocess
import threading
from urllib.parse import urlsplit

import urllib3.connection
import urllib3.connectionpool
from docker.transport.basehttpadapter import BaseHTTPAdapter

SAYING_S = 5.0
"""How long an ssh whose connection ended may take to say why."""
OPTIONS = ("BatchMode=yes", "ConnectTimeout=30", "ServerAliveInterval=15", "ServerAliveCountMax=4")
"""Nobody is asked for a password; an engine's machine that is silent for a minute is gone."""


class SshAdapter(BaseHTTPAdapter):
    """The connections of one client of the SDK to the engine at `ssh://[user@]host[:port]`."""

    def __init__(self, url: str, timeout_s: int) -> None:
        self._pool = _SshPool("localhost", timeout=timeout_s)
        self._pool.command = _command(url)
        self.trial = f"ssh {urlsplit(url).netloc.partition(':')[0]} docker version"
        """A command with which a user can try the way there."""
        super().__init__()

    def get_connection(self, url: str, proxies: object = None) -> urllib3.connectionpool.HTTPConnectionPool:
        """Return the connections, which are the same for every address."""
        return self._pool

    def request_url(self, request: object, proxies: object) -> str:
        """Return the path that a request asks for."""
        return str(request.path_url)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._pool.close()
        super().close()

    def what_ssh_said(self) -> str:
        """Return what the connections that have ended wrote to standard error. It waits up to `SAYING_S` for each."""
        for thread in self._pool.reapers:
            thread.join(SAYING_S)
        return " ".join(" ".join(self._pool.said).split())


class _SshPool(urllib3.connectionpool.HTTPConnectionPool):
    command: list[str]

    def __init__(self, host: str, timeout: int) -> None:
        super().__init__(host, timeout=timeout)
        self.said: list[str] = []
        self.reapers: list[threading.Thread] = []

    def _new_conn(self) -> urllib3.connection.HTTPConnection:
        made = _SshConnection("localhost", timeout=self.timeout.read_timeout)
        made.pool = self
        return made


class _SshConnection(urllib3.connection.HTTPConnection):
    pool: _SshPool

    def connect(self) -> None:
        near, far = socket.socketpair()
        near.settimeout(self.timeout)
        with far:
            process = subprocess.Popen(  # noqa: S603 - a session of its own: Ctrl-C is for us
                self.pool.command,
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        # It ends when nobody has the near end any more, long after this client: a container's stream outlives it.
        reaper = threading.Thread(target=_reap, args=(process, self.pool.said), name="docker over ssh", daemon=True)
        reaper.start()
        self.pool.reapers.append(reaper)
        self.sock = near


def _reap(process: subprocess.Popen[bytes], said: list[str]) -> None:
    said.append(process.communicate()[1].decode(errors="replace").strip())


def _command(url: str) -> list[str]:
    place = urlsplit(url)
    command = ["ssh", "-T"]
    for option in OPTIONS:
        command += ["-o", option]
    if place.username:
        command += ["-l", place.username]
    if place.port:
        command += ["-p", str(place.port)]
    return [*command, "--", place.hostname or "", "docker system dial-stdio"]
