"""The actor of a process, without a cluster: it takes the connections of the main process alone."""

from __future__ import annotations

import socket
import sys

import anyio
import pytest

from tests.cluster.nodes import RAY_WARNINGS

pytest.importorskip("ray")

from agentrl.cluster.actors import NodeProcess

pytestmark = [pytest.mark.anyio, *RAY_WARNINGS]


async def test_strangers_who_say_nothing_or_something_else_are_dropped_and_keep_no_process_waiting() -> None:
    node = NodeProcess()
    there = node._listener.getsockname()[:2]
    strangers = [socket.create_connection(there, 10) for _ in range(4)]
    strangers[0].sendall(bytes(64))
    ours = [socket.create_connection(there, 10) for _ in range(2)]
    for number, connection in enumerate(ours):
        connection.sendall(node._token + bytes([number]))
    try:
        with anyio.fail_after(20):
            await node.start([sys.executable, "-c", "print(input())"], {}, len(ours))
            ours[0].sendall(b"hello\n")
            assert await node.wait() == 0
        assert ours[0].recv(16) == b"hello\n"
        for stranger in strangers[1:]:
            assert stranger.recv(1) == b""
    finally:
        await node.stop()
        for connection in (*strangers, *ours):
            connection.close()
