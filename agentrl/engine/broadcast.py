"""Weight updates by broadcast: the trainer sends, every server receives, in the same moment.

    join      once, and again when the servers in service have changed: a process group of trainer and servers
    update    pause ─► begin_weight_update ─► each bucket: servers receive while the trainer sends ─► end ─► resume

If anything of it fails, the same pause is used to read the weights from disk, where the trainer has put them before, and the
group is formed anew for the next update.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio

from agentrl.engine.launch import free_port
from agentrl.engine.sglang import SGLangEngine
from agentrl.engine.sglang_server import SGLangServer
from agentrl.errors import AgentRLError, EngineError

log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 60.0
Backend = Literal["nccl", "gloo"]


class WeightSender(Protocol):
    """Rank 0: the trainer."""

    async def join_weight_group(
        self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float
    ) -> None:
        """Join as rank 0; returns when all ranks have."""
        ...

    async def weight_buckets(self) -> list[dict[str, Any]]:
        """Make the buckets of the current weights ready to send. For each its `names`, `dtypes` and `shapes`."""
        ...

    async def send_bucket(self, index: int) -> None:
        """Broadcast one bucket."""
        ...


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
        self._name = ""
        self._counter = itertools.count()
        self.failures = 0
        """Updates that had to be read from disk after all."""

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Bring the trainer's current weights, which `checkpoint` holds too, into every server. Returns the pause in
        seconds."""
        await self._form_group()
        manifests = await self._sender.weight_buckets() if self._members else []
        return await self._engine.swap_weights(checkpoint, version, lambda: self._send(manifests, checkpoint, version))

    async def _send(self, manifests: list[dict[str, Any]], checkpoint: Path, version: int) -> None:
        serving = self._engine.fleet.in_service()
        if self._members and self._members == serving:
            try:
                await self._post_to_all(lambda _: ("/begin_weight_update", {}))
                for index, manifest in enumerate(manifests):
                    body = self._body(manifest, version, last=index == len(manifests) - 1)
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._sender.send_bucket, index)
                        group.start_soon(self._post_to_all, lambda _, b=body: ("/update_weights_from_distributed", b))
                await self._post_to_all(lambda _: ("/end_weight_update", {}))
                return
            except* AgentRLError as errors:
                log.warning("broadcast of version %d failed, reading it from disk: %s", version, errors.exceptions)
                await self._end_update()
                self._members = []
                self.failures += 1
        await self._engine.load_from_disk(checkpoint, version)

    async def _end_update(self) -> None:
        """Close what `begin_weight_update` opened, on the servers that still can."""
        for server in self._members:
            with suppress(EngineError):
                await server.post("/end_weight_update", {}, JOIN_TIMEOUT_S, any_status=True)

    def _body(self, manifest: dict[str, Any], version: int, *, last: bool) -> dict[str, Any]:
        body = {**manifest, "group_name": self._name, "load_format": "flattened_bucket", "flush_cache": False}
        if last:
            body |= {"flush_cache": self._engine.pause_mode != "in_place", "weight_version": str(version)}
        return body

    async def _form_group(self) -> None:
        """Form the group of the servers in service, unless it is there. Without one, updates are read from disk."""
        serving = self._engine.fleet.in_service()
        if self._members == serving:
            return
        old, self._members, self._name = self._name, serving, f"weights-{next(self._counter)}"
        for server in serving if old else []:
            await server.post("/destroy_weights_update_group", {"group_name": old}, JOIN_TIMEOUT_S, any_status=True)
        port = free_port(self._address)
        offsets = list(itertools.accumulate((server.ranks for server in serving), initial=1))
        ranks = dict(zip([server.url for server in serving], offsets, strict=False))
        common = {"world_size": offsets[-1], "group_name": self._name, "backend": self._backend}

        def invitation(server: SGLangServer) -> tuple[str, dict[str, Any]]:
            where = {"master_address": self._address, "master_port": port, "rank_offset": ranks[server.url]}
            return "/init_weights_update_group", {**common, **where}

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(
                    self._sender.join_weight_group,
                    self._address,
                    port,
                    offsets[-1],
                    self._name,
                    self._backend,
                    JOIN_TIMEOUT_S,
                )
                group.start_soon(self._post_to_all, invitation)
        except* AgentRLError as errors:
            log.warning("no weight group could be formed: %s", errors.exceptions)
            self._members = []
            self.failures += 1

    async def _post_to_all(self, request: Callable[[SGLangServer], tuple[str, dict[str, Any]]]) -> None:
        async def post(server: SGLangServer) -> None:
            path, body = request(server)
            reply = await server.post(path, body, JOIN_TIMEOUT_S, any_status=True)
            if not reply.get("success"):
                raise EngineError(f"{server.url}{path}: {reply.get('message', reply)}")

        async with anyio.create_task_group() as group:
            for server in self._members:
                group.start_soon(post, server)
