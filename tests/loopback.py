"""Servers of other libraries on the loopback, in processes of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0


@contextmanager
def python_server(script: Path) -> Iterator[int]:
    """Run `python SCRIPT PORT` until the block ends; the port, once it accepts connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(script), str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, f"{script} ended"
                assert time.monotonic() < deadline, f"{script} did not start"
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait(40)
