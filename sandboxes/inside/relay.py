"""Runs a command in a sandbox that has no network, and lets it reach one HTTP server: through this process, over its own pipes.

The command sees http://127.0.0.1:PORT; each of its requests becomes a line on standard output, and lines on standard
input are the reply. Nothing else leaves the sandbox.

    in    {"argv": [...], "env": {...}, "stdin": BASE64, "timeout_s": 600.0}             once, first
          {"id": 1, "status": 200, "headers": {...}, "data": BASE64, "last": false}    as often as the reply has pieces
    out   {"kind": "request", "id": 1, "method": "POST", "path": "/v1/...", "headers": {...}, "body": BASE64}
          {"kind": "exit", "code": 0, "stdout": BASE64, "stderr": BASE64}              once, last; code null: its time was up
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OUTPUT_GRACE_S = 1.0
KEPT_BYTES = 2**20
"""How much of the end of each output stream of the command is kept."""

_lock = threading.Lock()
_replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
_out = os.dup(1)


def say(message: dict[str, Any]) -> None:
    """Write one line to the host."""
    data = json.dumps(message).encode() + b"\n"
    with _lock:
        while data:
            data = data[os.write(_out, data) :]


class _Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        pass

    def _pass_on(self) -> None:
        if not self.path.startswith("/"):
            return self.send_error(400, "a request names a path that begins with /")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with _lock:
            number = len(_replies) + 1
            _replies[number] = replies
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = {"method": self.command, "path": self.path, "headers": headers}
        say({"kind": "request", "id": number, **request, "body": base64.b64encode(body).decode()})
        part = replies.get()
        self.send_response(part["status"])
        for name, value in part["headers"].items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            data = base64.b64decode(part["data"])
            if data and self.command != "HEAD":
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            if part["last"]:
                if self.command != "HEAD":
                    self.wfile.write(b"0\r\n\r\n")
                return None
            part = replies.get()

    do_GET = do_HEAD = do_POST = _pass_on


def _hand_out_replies() -> None:
    for line in sys.stdin.buffer:
        part = json.loads(line)
        if part["id"] in _replies:
            _replies[part["id"]].put(part)


def _keep_the_end(stream: Any, kept: bytearray) -> None:
    while data := stream.read1(65536):
        kept += data
        del kept[:-KEPT_BYTES]


def main() -> None:
    """Serve until the command ends."""
    request = json.loads(sys.stdin.buffer.readline())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Door)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_hand_out_replies, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    env = {**os.environ, **{name: value.replace("{url}", url) for name, value in request["env"].items()}}
    for name in ("NO_PROXY", "no_proxy"):  # an image may name a proxy, which knows nothing of this server
        env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1"]))
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    try:
        command = subprocess.Popen(  # noqa: S603
            request["argv"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        say({"kind": "exit", "code": 127, "stdout": "", "stderr": base64.b64encode(str(error).encode()).decode()})
        os._exit(0)
    readers = [
        threading.Thread(target=_keep_the_end, args=(getattr(command, name), data), daemon=True)
        for name, data in kept.items()
    ]
    for reader in readers:
        reader.start()
    assert command.stdin is not None
    try:
        command.stdin.write(base64.b64decode(request["stdin"]))
        command.stdin.close()
    except BrokenPipeError:
        pass
    try:
        code = command.wait(request["timeout_s"])
    except subprocess.TimeoutExpired:  # it ends with this process, whose last words are what it said until now
        code = None
    # What the command has left running may hold its output open for ever.
    deadline = time.monotonic() + OUTPUT_GRACE_S
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
    said = {name: base64.b64encode(bytes(data)).decode() for name, data in kept.items()}
    say({"kind": "exit", "code": code, **said})
    os._exit(0)
