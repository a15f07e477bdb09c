"""The engine over SGLang servers; it drives real SGLang servers and the embedded one alike.

    generate ─► choose a server ─► stream /generate ─► stop | length ─► Generation
                    ▲                    │
                    │                    ├─ abort (a weight update in mode `abort`): keep the partial ids
                    └── go on from them ◄┴─ lost (the server died, or hangs): keep the partial ids

In modes `retract` and `in_place` a weight update leaves replies open, and the server reports which weights made which
token. However a reply was interrupted, the caller sees one.

A lost server is taken out of service. `_bring_back` waits for it (or, with `revive`, starts it again), loads the current
weights, and puts it back.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
from anyio.to_thread import run_sync as in_thread

from agentrl.background import background_tasks
from agentrl.engine.protocol import (
    ADAPTER_CONFIG,
    Draft,
    Generation,
    ImageSpan,
    OnProgress,
    PauseMode,
    Sampling,
    join,
)
from agentrl.engine.routing import Router
from agentrl.engine.sglang_server import Adapter, ServerLostError, SGLangServer
from agentrl.engine.staging import staged
from agentrl.errors import EngineError

log = logging.getLogger(__name__)

CONTROL_TIMEOUT_S = 120.0
"""Bound of a weight update, and of starting a server again."""
ABORT_TIMEOUT_S = 1.0
"""How long aborted replies may take to come back before the server is paused all the same."""
ABORTED_RETRY_S = 0.005
"""How long to wait before resubmitting a reply that something other than our own pause aborted."""

Revive = Callable[[str], Awaitable[None]]
"""Start the server at a URL again; returns when it answers."""
Load = Callable[[], Awaitable[None]]
"""Bring new weights into the paused servers."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Bounds of an engine's waits."""

    request_timeout_s: float = 600
    """One reply, interruptions included."""
    hang_timeout_s: float = 30
    """A server that answers neither a health check nor a pause within this is taken for dead."""
    health_interval_s: float = 5
    """Time between two looks at a server."""
    spill: int = 8
    """A session leaves its server when that has so many more replies in flight than the least busy one."""


class SGLangEngine:
    """One or more SGLang servers that serve the same weights. Open it with `sglang_engine`."""

    def __init__(
        self,
        servers: Sequence[SGLangServer],
        tasks: anyio.abc.TaskGroup,
        *,
        pause_mode: PauseMode,
        limits: EngineLimits,
        revive: Revive | None,
    ) -> None:
        self._servers = servers
        self._tasks = tasks
        self._asked_pause_mode = pause_mode
        self._limits = limits
        self._revive = revive
        self._router = Router[SGLangServer](limits.spill)
        self._version = 0
        self._checkpoint: Path | None = None
        self._adapter: Adapter | None = None
        """The LoRA adapter of new tokens; None: they are the served model's own."""
        self._updating = anyio.Lock()
        self._running = anyio.Event()
        self._running.set()
        self._returned = anyio.Event()
        self.lost_servers = 0
        """How often a server was taken out of service."""

    @property
    def version(self) -> int:
        """The weight version that serves new tokens."""
        return self._version

    @property
    def pause_mode(self) -> PauseMode:
        """How weight updates interrupt replies: as asked, but `abort` where a server does not report versions by token."""
        return self._asked_pause_mode if all(s.reports_spans for s in self._servers) else "abort"

    @property
    def has_grammar(self) -> bool:
        """Whether every server can hold a reply to a JSON schema."""
        return all(server.has_grammar for server in self._servers)

    @property
    def takes_images(self) -> bool:
        """Whether the model that the servers serve sees images."""
        return all(server.takes_images for server in self._servers)

    @property
    def in_flight(self) -> int:
        """Replies being generated."""
        return sum(server.in_flight for server in self._servers)

    @property
    def serving(self) -> list[str]:
        """URLs of the servers in service."""
        return [server.url for server in self.servers_in_service()]

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        draft: Draft | None = None,
    ) -> Generation:
        """One uninterrupted reply; see `Engine.generate`. One that must satisfy a JSON schema reports no progress: a grammar
        starts at a reply's first token, so if it is interrupted it starts over."""
        if sampling.json_schema is not None:
            on_progress = draft = None
        nothing = Generation(output_ids=[], logprobs=[], versions=[], finish="abort")
        done = (draft and draft.start) or nothing
        with anyio.move_on_after(self._limits.request_timeout_s):
            while True:
                if len(done.output_ids) >= sampling.max_new_tokens:
                    return replace(done, finish="length")
                await self._running.wait()
                server = await self._server(session)
                try:
                    part = await self._go_on(server, input_ids, sampling, session, images, done, on_progress, draft)
                except ServerLostError as lost:
                    self._take_out(server, str(lost))
                    part = lost.partial or nothing
                if part.finish == "abort" and sampling.json_schema is not None:
                    continue
                done = join(done, part)
                if done.finish != "abort":
                    return done
                if self._running.is_set():
                    await anyio.sleep(ABORTED_RETRY_S)
        raise EngineError(
            f"no reply within {self._limits.request_timeout_s:g} s ({len(done.output_ids)} tokens so far; "
            f"{len(self.serving)} of {len(self._servers)} servers in service); are the servers overloaded, or is "
            "engine.request_timeout_s too small?"
        )

    async def _go_on(
        self,
        server: SGLangServer,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        images: Sequence[ImageSpan],
        done: Generation,
        on_progress: OnProgress | None,
        draft: Draft | None,
    ) -> Generation:
        partial = done.output_ids

        def watch(so_far: Callable[[], Generation]) -> None:
            if draft is not None:
                draft.so_far = lambda: join(done, so_far())

        return await server.generate(
            input_ids + partial,
            replace(sampling, max_new_tokens=sampling.max_new_tokens - len(partial)),
            session=session,
            images=images,
            adapter=self._adapter,
            on_ids=None if on_progress is None else lambda ids: on_progress(partial + ids),
            watch=watch,
        )

    async def _server(self, session: str) -> SGLangServer:
        while not (serving := self.servers_in_service()):
            await self._returned.wait()
        return self._router.choose(session, serving)

    def end_session(self, session: str) -> None:
        """Forget which server a session prefers."""
        self._router.forget(session)

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Interrupt replies, load `checkpoint` into every server as `version`, go on. Returns the pause in seconds.

        Servers of this machine read a copy in shared memory that is made before the pause. A checkpoint that is a LoRA adapter is
        put on the model that is served: nothing is paused then.
        """
        if await in_thread(_is_adapter, checkpoint):
            return await self._swap_adapter(checkpoint, version)
        if not all(server.is_local for server in self._servers):
            return await self.swap_weights(checkpoint, version, lambda: self.load_from_disk(checkpoint, version))
        async with staged(checkpoint) as copy:
            return await self.swap_weights(checkpoint, version, lambda: self.load_from_disk(copy, version))

    async def swap_weights(self, checkpoint: Path, version: int, load: Load) -> float:
        """The same with another way to bring the weights in. A server that returns later reads `checkpoint`."""
        async with self._updating:
            started = time.perf_counter()
            try:
                await self.pause(self.pause_mode)
                await load()
                self._checkpoint, self._version, self._adapter = checkpoint, version, None
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(CONTROL_TIMEOUT_S):
                    await self.resume()
            return time.perf_counter() - started

    async def _swap_adapter(self, checkpoint: Path, version: int) -> float:
        """Load an adapter beside the one in use, then interrupt replies, which go on under it. Returns how long that took.

        Servers keep a request's adapter to its end, so a reply that finishes meanwhile is whole, and of the adapter before.
        """
        # Named as no other: servers that outlive this process may know adapters of others.
        adapter = Adapter(f"v{version}-{uuid.uuid4().hex}", version)
        async with self._updating:
            started = time.perf_counter()
            await self._on_every_server(
                lambda server: server.load_adapter(adapter, checkpoint, CONTROL_TIMEOUT_S), tolerant=True
            )
            self._checkpoint, self._version, self._adapter = checkpoint, version, adapter
            bound = self._limits.hang_timeout_s
            await self._on_every_server(lambda server: server.post("/abort_request", {"abort_all": True}, bound))
            return time.perf_counter() - started

    async def load_from_disk(self, checkpoint: Path, version: int) -> None:
        """Let every server in service, paused, read `checkpoint`."""
        mode = self.pause_mode
        await self._on_every_server(lambda server: self._load(server, checkpoint, version, mode), tolerant=True)

    def servers_in_service(self) -> list[SGLangServer]:
        """The servers that take requests now."""
        return [server for server in self._servers if server.serving]

    async def _load(self, server: SGLangServer, checkpoint: Path, version: int, mode: PauseMode) -> None:
        body = {
            "model_path": str(checkpoint),
            "weight_version": str(version),
            "flush_cache": mode != "in_place",
            "abort_all_requests": False,
        }
        reply = await server.post("/update_weights_from_disk", body, CONTROL_TIMEOUT_S, any_status=True)
        if not reply.get("success"):
            raise EngineError(f"{server.url} could not load {checkpoint}: {reply.get('message', reply)}")

    async def pause(self, mode: PauseMode) -> None:
        """Stop producing tokens on every server until `resume`."""
        self._running = anyio.Event()
        await self._on_every_server(lambda server: self._pause(server, mode))

    async def _pause(self, server: SGLangServer, mode: PauseMode) -> None:
        bound = self._limits.hang_timeout_s
        if mode == "abort":
            # SGLang's own abort looks once a second whether all replies have ended. Ended before, they cost no second.
            with anyio.move_on_after(ABORT_TIMEOUT_S):
                while server.in_flight:
                    await server.post("/abort_request", {"abort_all": True}, bound)
                    await anyio.sleep(ABORTED_RETRY_S)
            # The server puts a reply away only after it has sent it.
            await anyio.sleep(4 * ABORTED_RETRY_S)
        await server.post("/pause_generation", {"mode": mode}, bound)

    async def resume(self) -> None:
        """Produce tokens again."""
        bound = self._limits.hang_timeout_s
        try:
            await self._on_every_server(lambda server: server.post("/continue_generation", {}, bound))
        finally:
            self._running.set()

    async def health(self) -> None:
        """Return when every server in service answers; raise EngineError when one does not, or none is in service."""
        if not self.serving:
            raise EngineError("no server is in service")
        bound = self._limits.hang_timeout_s
        for server in self.servers_in_service():
            await server.get("/health", bound)

    async def _on_every_server(self, call: Callable[[SGLangServer], Awaitable[Any]], *, tolerant: bool = False) -> None:
        """Call on every server in service, at the same time. A lost one is taken out; a refusal is raised, at the end.

        `tolerant`: servers that refuse what others accept are taken out, so that those in service stay equal.
        """
        refusals: dict[SGLangServer, EngineError] = {}

        async def guarded(server: SGLangServer) -> None:
            try:
                await call(server)
            except ServerLostError as lost:
                self._take_out(server, str(lost))
            except EngineError as error:
                refusals[server] = error

        asked = self.servers_in_service()
        async with anyio.create_task_group() as group:
            for server in asked:
                group.start_soon(guarded, server)
        if tolerant and len(refusals) < len(asked):
            for server, error in refusals.items():
                self._take_out(server, str(error))
        elif refusals:
            raise next(iter(refusals.values()))

    async def join_servers(self) -> None:
        """Learn what the servers can do and which version they serve. Raises EngineError if they do not agree."""
        versions: dict[str, int] = {}
        for server in self._servers:
            versions[server.url] = await server.probe(self._limits.hang_timeout_s)
            server.serving = True
        if len(set(versions.values())) != 1:
            raise EngineError(f"the servers serve different weight versions: {versions}")
        self._version = versions[self._servers[0].url]
        for server in self._servers:
            self._tasks.start_soon(self._watch, server)

    async def _watch(self, server: SGLangServer) -> None:
        """Look after one server for as long as the engine lives."""
        while True:
            if server.serving:
                await anyio.sleep(self._limits.health_interval_s)
                await self._look_at(server)
            else:
                await self._bring_back(server)

    async def _look_at(self, server: SGLangServer) -> None:
        running = self._running
        if not running.is_set() or not server.serving:
            return
        try:
            await server.get("/health", self._limits.hang_timeout_s)
        except EngineError as error:
            # A paused SGLang server fails its own health check, which generates a token.
            if running is self._running and running.is_set() and server.serving:
                self._take_out(server, str(error))

    def _take_out(self, server: SGLangServer, reason: str) -> None:
        if server.serving:
            log.warning("taking %s out of service: %s", server.url, reason)
            server.serving = False
            self.lost_servers += 1
            server.drop_requests()

    async def _bring_back(self, server: SGLangServer) -> None:
        """Wait until a lost server answers, started again where that is ours to do, and give it the current weights."""
        try:
            if self._revive is not None:
                await self._revive(server.url)
            async with self._updating:
                # A server that hung may have missed the end of a pause, and still hold replies that went on elsewhere.
                await server.post("/continue_generation", {}, self._limits.hang_timeout_s)
                await server.post("/abort_request", {"abort_all": True}, self._limits.hang_timeout_s)
                if self._adapter is not None:
                    await server.unload_adapter(self._adapter, self._limits.hang_timeout_s)
                served = await server.probe(self._limits.hang_timeout_s)
                if self._checkpoint is not None and self._adapter is not None:
                    await server.load_adapter(self._adapter, self._checkpoint, CONTROL_TIMEOUT_S)
                elif self._checkpoint is not None:
                    await self._load(server, self._checkpoint, self._version, "abort")
                elif served != self._version:
                    raise EngineError(f"{server.url} serves version {served}, not {self._version}")
                server.serving = True
        except EngineError as error:
            log.info("%s is still out of service: %s", server.url, error)
            await anyio.sleep(min(1.0, self._limits.health_interval_s))
            return
        log.warning("%s is back in service with version %d", server.url, self._version)
        returned, self._returned = self._returned, anyio.Event()
        returned.set()


def _is_adapter(checkpoint: Path) -> bool:
    return (checkpoint / ADAPTER_CONFIG).is_file() and not (checkpoint / "config.json").exists()


@asynccontextmanager
async def sglang_engine(
    urls: Sequence[str],
    *,
    pause_mode: PauseMode = "retract",
    limits: EngineLimits | None = None,
    revive: Revive | None = None,
) -> AsyncIterator[SGLangEngine]:
    """A client of the servers at `urls`, with its connections, for the length of the context."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22) as http,
        background_tasks() as tasks,
    ):
        servers = [SGLangServer(http, url) for url in urls]
        engine = SGLangEngine(servers, tasks, pause_mode=pause_mode, limits=limits or EngineLimits(), revive=revive)
        await engine.join_servers()
        yield engine
