"""Nodes of a real cluster as hosts: directories on them, and processes there."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from anyio.to_thread import run_sync as in_thread

from agentrl.cluster import files
from agentrl.cluster.cluster import open_cluster
from agentrl.cluster.host import LOST, RayHost
from agentrl.config import RunConfig
from agentrl.errors import EngineError
from agentrl.models import NANO
from tests.cluster.nodes import RAY_WARNINGS, open_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(300), *RAY_WARNINGS]

ECHO = "import sys; print('ready', file=sys.stderr); [print(line.strip()[::-1], flush=True) for line in sys.stdin]"
"""A program that reverses lines until its standard input closes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without room, and two nodes that take two processes each."""
    with open_nodes(0, 2, 2) as opened:
        yield opened


@asynccontextmanager
async def open_hosts(cluster: Any, *roles: str) -> AsyncIterator[list[Any]]:
    """A host of each role."""
    config = RunConfig.model_validate({"model": {"path": str(NANO)}, "cluster": {"address": cluster.address}})
    async with open_cluster(config) as open_host, AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_host(role, role)) for role in roles]


async def test_a_directory_is_copied_to_a_node_once_and_is_gone_with_its_last_use(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"content" * 2**20)
    async with open_hosts(cluster, *["RolloutWorker"] * 3) as hosts:
        by_node: dict[str, list[RayHost]] = {}
        for host in hosts:
            by_node.setdefault(host.node, []).append(host)
        one, other = max(by_node.values(), key=len)[:2]
        there = [await host.bring(tmp_path) for host in (one, other)]
        assert there[0] == there[1] != tmp_path
        assert (there[0] / "a" / "file").read_bytes() == (tmp_path / "a" / "file").read_bytes()
        await one.remove(there[0])
        assert there[0].exists(), "the other process has use for it"
        await other.remove(there[1])
        assert not there[0].exists()
        root = there[0].parent
    assert not root.exists()


async def test_weights_of_a_rank_are_on_the_nodes_of_servers_by_the_time_that_they_are_here(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_hosts(cluster, "TrainerRank", "EngineServer") as (rank, server):
        assert rank.node != server.node
        (rank.scratch / "v1").mkdir()
        (rank.scratch / "v1" / "model.safetensors").write_bytes(b"weights")
        await rank.fetch(rank.scratch / "v1", tmp_path / "v1", for_servers=True)
        assert (tmp_path / "v1" / "model.safetensors").read_bytes() == b"weights"
        monkeypatch.delattr(files, "put_directory")  # nothing is copied from here
        there = await server.bring(tmp_path / "v1")
        assert (there / "model.safetensors").read_bytes() == b"weights"
        await server.remove(there)
        assert not there.exists()


async def test_a_process_on_a_node_is_talked_to_in_lines_and_ends_as_it_is_told_or_with_its_actor(
    cluster: Any, tmp_path: Path
) -> None:
    async with open_hosts(cluster, *["EngineServer"] * 4) as (echo, killed, lost, empty):
        log = tmp_path / "log"
        command = [sys.executable, "-c", ECHO]
        async with echo.child_process("echo", command, log=log, error=EngineError) as child:
            await child.write_line("abc")
            assert await child.read_line(60) == "cba"
        assert await child.wait() == 0, "its standard input was closed"
        assert log.read_text() == "ready\n"
        async with killed.child_process("echo", command, log=log, error=EngineError) as child:
            child.kill()
            assert await child.wait() == -signal.SIGKILL
        async with lost.child_process("echo", command, log=log, error=EngineError) as child:
            await in_thread(ray.kill, lost.actor)
            with pytest.raises(EngineError, match=r"the echo on node .* ended"):
                await child.read_line(60)
            assert await child.wait() == LOST
            assert "lost the echo" in log.read_text()
        with pytest.raises(EngineError, match=r"the echo cannot be started on node .* No such file"):
            async with empty.child_process("echo", ["no such program"], log=log, error=EngineError):
                pass
