"""An HTTP server in a sandbox without a network: its requests leave as lines on standard output, their replies come as lines on standard input.

out   http://127.0.0.1:PORT                                                                   once, first: its address
      {"id": 1, "method": "POST", "path": "/v1/...", "headers": {...}, "body": BASE64}       a request
in    {"id": 1, "status": 200, "type": "application/json", "data": BASE64, "last": false}    a piece of its reply
"""

from __future__ import annotations

import base64
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_lock = threading.Lock()
_replies: list[queue.SimpleQueue[dict[str, Any]]] = []
"""Pieces of the reply to each request, by its number."""


class _ModelRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        pass

    def _pass_on(self) -> None:
        if not self.path.startswith("/"):
            return self.send_error(400, "a request names a path that begins with /")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = {"method": self.command, "path": self.path, "headers": headers}
        pieces: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with _lock:
            line = json.dumps({"id": len(_replies), **request, "body": base64.b64encode(body).decode()})
            _replies.append(pieces)
            print(line, flush=True)
        piece = pieces.get()
        self.send_response(piece["status"])
        self.send_header("Content-Type", piece["type"])
        self.send_header("Connection", "close")  # which is the end of the reply
        self.end_headers()
        while not piece["last"]:
            self.wfile.write(base64.b64decode(piece["data"]))
            piece = pieces.get()
        return None

    do_GET = do_HEAD = do_POST = _pass_on


def main() -> None:
    """Serve until standard input ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _ModelRequest)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    for line in sys.stdin.buffer:
        piece = json.loads(line)
        _replies[piece["id"]].put(piece)
