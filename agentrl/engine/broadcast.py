"""Weight updates by broadcast: the trainer sends, every server receives, in the same moment.

    join      once, and again when the servers in service have changed: a process group of trainer and servers
    update    pause ─► begin_weight_update ─► each bucket: servers receive while the trainer sends ─► end ─► resume

If anything of it fails, be it a server's fault or the trainer's, the weights are read from disk, where the trainer has put them
before, and the group is formed anew for the next update. A trainer that was lost is missed by whoever asks it next.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio

from agentrl.engine.client import SGLangEngine
from agentrl.engine.client.server import SGLangServer
from agentrl.errors import AgentRLError, EngineError
from agentrl.system.host import free_port

log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 60.0
Backend = Literal["nccl", "gloo"]


class WeightSender(Protocol):
    """Rank 0: the trainer."""

    async def join_weight_group(
        self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float
    ) -> None:
        """Join as rank 0; returns when all ranks have."""

    async def weight_buckets(self) -> list[dict[str, Any]]:
        """Make the buckets of the current weights ready to send. For each its `names`, `dtypes` and `shapes`."""

    async def send_bucket(self, index: int) -> None:
        """Broadcast one bucket."""


class Broadcast:
    """Weight updates of one engine from one trainer. `backend`: nccl between GPUs, gloo between CPUs."""

    def __init__(
        self, engine: SGLangEngine, sender: WeightSender, backend: Backend, address: str = "127.0.0.1"
    ) -> None:
        self._engine = engine
        self._sender = sender
        self._backend = backend
        self._address = address
        self._members: list[SGLangServer] = []
        """The servers of the whole group; none where there is none."""
        self._name = ""
        """The group that servers may hold."""
        self._counter = itertools.count()
        self.failures = 0
        """Updates that had to be read from disk after all."""

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Bring the trainer's current weights, which `checkpoint` holds too, into every server.

        Returns the pause in seconds.
        """
        manifests: list[dict[str, Any]] = []
        with self._from_disk_instead(version):
            await self._form_group()
            if self._members:
                manifests = await self._sender.weight_buckets()

        async def send() -> bool:
            if self._members and self._members == self._engine.fleet.in_service():
                with self._from_disk_instead(version):
                    await self._send(manifests, version)
                    return True
            return False

        return await self._engine.update_weights(checkpoint, version, send)

    @contextmanager
    def _from_disk_instead(self, version: int) -> Iterator[None]:
        """Give the group up where anything fails that is done with it, so that servers read from disk."""
        try:
            yield
        except* (AgentRLError, OSError) as errors:
            log.warning("version %d cannot be broadcast and is read from disk: %s", version, errors.exceptions)
            self._members = []
            self.failures += 1

    async def _send(self, manifests: list[dict[str, Any]], version: int) -> None:
        try:
            await self._post_to_members("/begin_weight_update", {})
            for index, manifest in enumerate(manifests):
                body = self._body(manifest, version, last=index == len(manifests) - 1)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._sender.send_bucket, index)
                    group.start_soon(self._post_to_members, "/update_weights_from_distributed", body)
            await self._post_to_members("/end_weight_update", {})
        except* (AgentRLError, OSError):
            for server in self._members:  # what has begun must end, on the servers that still can
                with suppress(EngineError):
                    await server.post("/end_weight_update", {}, JOIN_TIMEOUT_S)
            raise

    async def _post_to_members(self, path: str, body: dict[str, Any]) -> None:
        async with anyio.create_task_group() as group:
            for server in self._members:
                group.start_soon(server.post, path, body, JOIN_TIMEOUT_S)

    def _body(self, manifest: dict[str, Any], version: int, *, last: bool) -> dict[str, Any]:
        body = {**manifest, "group_name": self._name, "load_format": "flattened_bucket", "abort_all_requests": False}
        if not last:
            return body | {"flush_cache": False}
        return body | {"flush_cache": self._engine.pause_mode != "in_place", "weight_version": str(version)}

    async def _form_group(self) -> None:
        """Form the group of the servers in service, unless it is there, or none is in service."""
        serving = self._engine.fleet.in_service()
        if self._members == serving:
            return
        self._members = []
        if not serving:
            return
        for server in serving:
            with suppress(EngineError):  # it may be in none
                await server.post("/destroy_weights_update_group", {"group_name": self._name}, JOIN_TIMEOUT_S)
        self._name = f"weights-{next(self._counter)}"
        port = free_port(self._address)
        *ranks, world_size = itertools.accumulate((server.abilities.ranks for server in serving), initial=1)
        where = {"master_address": self._address, "master_port": port, "world_size": world_size}
        body = {**where, "group_name": self._name, "backend": self._backend}
        join = self._sender.join_weight_group
        async with anyio.create_task_group() as group:
            group.start_soon(join, self._address, port, world_size, self._name, self._backend, JOIN_TIMEOUT_S)
            for server, rank in zip(serving, ranks, strict=True):
                group.start_soon(
                    server.post, "/init_weights_update_group", {**body, "rank_offset": rank}, JOIN_TIMEOUT_S
                )
        self._members = serving
