"""The engine over SGLang servers; it drives real SGLang servers and the embedded one alike.

    this process        SGLangEngine: weights, pauses, which servers there are; replies too (`ReplyClient`)
                             │ `fleet.followers`
    worker processes    FollowingEngine: replies alone, from the same servers

What changes all servers is done by one process, one change after the other.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import anyio

from agentrl.engine.client.adapters import Adapter, Adapters, adapters_in
from agentrl.engine.client.fleet import Fleet, Restart
from agentrl.engine.client.fleet_state import EngineLimits, FleetState, FollowerReport, ServerState
from agentrl.engine.client.followers import Follower
from agentrl.engine.client.reply_client import ReplyClient
from agentrl.engine.client.server_errors import ServerLostError
from agentrl.engine.client.sglang_server import ServedModel, SGLangServer, open_session
from agentrl.engine.client.staging import staged
from agentrl.engine.client.version_tracker import VERSION_DIGITS, version_number
from agentrl.engine.protocol import PauseMode
from agentrl.errors import EngineError
from agentrl.system.tasks import background_tasks, in_thread

CONTROL_TIMEOUT_S = 120.0
"""Bound of a weight update, and of starting a server again."""

Load = Callable[[], Awaitable[None]]
"""Bring new weights into the paused servers."""
Place = Callable[[str, Path], AbstractAsyncContextManager[Path]]
"""Have a directory on the machine of the server at a URL, for the length of a context, which yields where it is there."""


class SGLangEngine(ReplyClient):
    """One or more SGLang servers that serve the same weights. Open it with `sglang_engine`."""

    def __init__(
        self,
        fleet: Fleet,
        model: ServedModel,
        version: int,
        *,
        pause_mode: PauseMode,
        limits: EngineLimits,
        place: Place | None = None,
    ) -> None:
        super().__init__(fleet, model, version, limits)
        self._model.keeps_cache = pause_mode == "in_place"
        self._asked_pause_mode = pause_mode
        self._place = place
        self._checkpoint: Path | None = None
        self._retired = Adapters()
        """The adapters before, that requests on their way may still name."""
        self._updating = anyio.Lock()

    @property
    def pause_mode(self) -> PauseMode:
        """The way in which weight updates interrupt replies: as asked, but `abort` where a server does not report versions by token."""
        return self._asked_pause_mode if all(s.abilities.reports_spans for s in self.fleet.servers) else "abort"

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Interrupt replies, load `checkpoint` into every server as `version`, go on. Returns the pause in seconds.

        Servers of this machine read a copy in shared memory that is made before the pause. LoRA adapters, one or one for each role
        (`agentrl.engine.adapter_folders`), are put on the model that is served: nothing is paused then.

        Raises:
            EngineError: They cannot be used, and what was served before still is.
        """
        if adapters := await in_thread(adapters_in, checkpoint, version):
            return await self._swap_adapters(adapters, version)
        if self._place is not None:
            async with self._placed(checkpoint) as load:
                return await self.swap_weights(checkpoint, version, lambda: load(version))
        if not all(server.is_local for server in self.fleet.servers):
            return await self.swap_weights(checkpoint, version, lambda: self.load_from_disk(checkpoint, version))
        async with staged(checkpoint) as copy:
            return await self.swap_weights(checkpoint, version, lambda: self.load_from_disk(copy, version))

    async def swap_weights(self, checkpoint: Path, version: int, load: Load) -> float:
        """Return the same with another way to bring the weights in. A server that returns later reads `checkpoint`."""
        async with self._changing(version):
            started = time.perf_counter()
            try:
                # Told to the processes that follow with the pause, so that all know it before any token is made by the new weights.
                self._model.updates += 1
                self._model.newest_version = max(version, self._model.newest_version or 0)
                # Replies under an adapter come back, and go on without it: it is put away before servers go on.
                await self.pause("abort" if self._adapters else self.pause_mode)
                await load()
                await self.fleet.call_all(self._put_away_all)
                self._checkpoint, self._version = checkpoint, version
                self._adapters = self._retired = Adapters()
                self._model.version = version
            finally:
                with anyio.move_on_after(CONTROL_TIMEOUT_S):
                    await self.resume()
            return time.perf_counter() - started

    @asynccontextmanager
    async def _changing(self, version: int) -> AsyncIterator[None]:
        """Change what all servers serve: alone, and to the end also when the caller is cancelled, as servers of different weights would stay in service otherwise.

        What is done in it is bounded.

        Raises:
            EngineError: No reply could name the version.
        """
        if version < 0 or version_number(str(version)) != version:
            raise EngineError(
                f"{version} is no version of weights: it must be a number of at most {VERSION_DIGITS} digits, from 0 on"
            )
        async with self._updating:
            with anyio.CancelScope(shield=True):
                yield

    async def _swap_adapters(self, adapters: Adapters, version: int) -> float:
        """Load adapters beside those in use, then interrupt replies, which go on under them. Returns how long that took.

        Servers keep a request's adapter to its end, so a reply that finishes meanwhile is whole, and of the adapter before. Requests name
        new adapters once every server has all of them: those of all roles are of one version.

        Raises:
            EngineError: Every server refused them, and has those in use as before.
        """
        bound = self._limits.hang_timeout_s
        async with self._changing(version):
            started = time.perf_counter()
            self._model.newest_version = max(version, self._model.newest_version or 0)
            try:
                await self.fleet.call_all(lambda server: self._load_adapters(server, adapters), mark_down_refusing=True)
            except EngineError:
                await self.fleet.call_all(lambda server: self._restore_adapters(server, adapters))
                raise
            retired, self._retired = self._retired, self._adapters
            self._version, self._adapters = version, adapters
            self.fleet.followers.announce()
            await self.fleet.followers.acknowledged()
            await self.fleet.call_all(lambda server: server.abort_all(bound))
            swapped_s = time.perf_counter() - started
            # SGLang waits for the last reply under one, which has just been aborted.
            await self.fleet.call_all(lambda server: server.unload_adapters(retired, bound))
            return swapped_s

    async def _put_away_all(self, server: SGLangServer) -> None:
        await server.unload_adapters([*self._retired, *self._adapters], self._limits.hang_timeout_s)

    def _place_of(self, server: SGLangServer, directory: Path) -> AbstractAsyncContextManager[Path]:
        """Have a directory where a server can read it, for the length of a context."""
        return nullcontext(directory) if self._place is None else self._place(server.url, directory)

    @asynccontextmanager
    async def _placed(self, checkpoint: Path) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Have a checkpoint on the machine of every server in service, before any pause; yield what then has them read it there."""
        places: dict[SGLangServer, Path] = {}

        async def read(server: SGLangServer, version: int, mode: PauseMode) -> None:
            if server not in places:
                raise ServerLostError(f"{server.url} came into service while weights were brought to the others")
            await self._load(server, places[server], version, mode)

        async def load(version: int) -> None:
            mode = self.pause_mode
            await self.fleet.call_all(lambda server: read(server, version, mode), mark_down_refusing=True)

        async with AsyncExitStack() as stack:

            async def bring(server: SGLangServer) -> None:
                places[server] = await stack.enter_async_context(self._place_of(server, checkpoint))

            await self.fleet.call_all(bring, mark_down_refusing=True)
            yield load

    @asynccontextmanager
    async def _adapters_at(self, server: SGLangServer, adapters: Adapters) -> AsyncIterator[list[Adapter]]:
        """Have adapters where a server can read them, for the length of a context, which yields them as they are there."""
        async with AsyncExitStack() as stack:
            there = []
            for one in adapters:
                assert one.directory is not None  # of this process's own
                directory = await stack.enter_async_context(self._place_of(server, one.directory))
                there.append(replace(one, directory=directory))
            yield there

    async def _load_adapters(self, server: SGLangServer, adapters: Adapters) -> None:
        async with self._adapters_at(server, adapters) as there:
            await server.load_adapters(there, CONTROL_TIMEOUT_S)

    async def _restore_adapters(self, server: SGLangServer, refused: Adapters) -> None:
        async with self._adapters_at(server, self._adapters) as there:
            await server.restore_adapters(refused, there, CONTROL_TIMEOUT_S)

    async def load_from_disk(self, checkpoint: Path, version: int) -> None:
        """Let every server in service, paused, read `checkpoint`."""
        mode = self.pause_mode
        await self.fleet.call_all(lambda server: self._load(server, checkpoint, version, mode), mark_down_refusing=True)

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
        """Stop producing tokens until `resume`."""
        await self.fleet.pause(mode)

    async def resume(self) -> None:
        """Produce tokens again."""
        await self.fleet.resume()

    async def catch_up(self, server: SGLangServer) -> None:
        """Give a server that returned the current weights, and put it into service.

        Raises:
            EngineError: It does not answer, or serves others.
        """
        bound = self._limits.hang_timeout_s
        async with self._updating:
            # A server that hung may have missed the end of a pause, and still hold replies that went on elsewhere.
            await server.post("/continue_generation", {}, bound)
            await server.abort_all(bound)
            await self._put_away_all(server)
            served = await server.probe(bound)
            if self._checkpoint is not None:
                async with self._place_of(server, self._checkpoint) as there:
                    await self._load(server, there, self._model.version or 0, "abort")
            elif not self._adapters and served != self._version:
                raise EngineError(f"{server.url} serves version {served}, not {self._version}")
            await self._load_adapters(server, self._adapters)
            self.fleet.begin_service(server)

    def state(self) -> FleetState:
        """Return what the processes that follow must know now."""
        fleet, model = self.fleet, self._model
        return FleetState(
            number=fleet.followers.number,
            servers=[ServerState(one.address, one.incarnation, one.serving, one.abilities) for one in fleet.servers],
            running=fleet.running.is_set(),
            ends_replies=fleet.ends_replies,
            version=self._version,
            model_version=model.version,
            newest_version=model.newest_version,
            updates=model.updates,
            keeps_cache=model.keeps_cache,
            vocabulary=model.vocabulary,
            adapters={role: (one.name, one.version) for role, one in self._adapters.by_role.items()},
            limits=self._limits,
        )

    def take_report(self, follower: Follower, report: FollowerReport) -> None:
        """Note what a process that follows has taken over and counted."""
        self.fleet.bad_replies += report.bad_replies
        self.fleet.shortages += report.shortages
        self.fleet.last_failure = report.last_failure or self.fleet.last_failure
        for server in self.fleet.servers:
            server.tokens += report.tokens.get(server.address, 0)
        self.fleet.followers.took_over(follower, report.number, report.in_flight)


@asynccontextmanager
async def sglang_engine(
    urls: Sequence[str],
    *,
    pause_mode: PauseMode = "retract",
    limits: EngineLimits | None = None,
    restart: Restart | None = None,
    place: Place | None = None,
    vocabulary: int | None = None,
) -> AsyncIterator[SGLangEngine]:
    """Open a client of the servers at `urls`, with its connections, for the length of the context.

    `place`: how weights come to the servers; None: they read them where they lie. `vocabulary`: how many rows the output layer of the model has that they serve; None: ids are not held to it.
    """
    async with open_session() as http, background_tasks() as tasks:
        limits = limits or EngineLimits()
        model = ServedModel(vocabulary)
        fleet = Fleet([SGLangServer(http, url, model) for url in urls], limits, restart)
        version = model.version = model.newest_version = await fleet.join()
        engine = SGLangEngine(fleet, model, version, pause_mode=pause_mode, limits=limits, place=place)
        for server in fleet.servers:
            tasks.start_soon(fleet.monitor, server, engine.catch_up)
        yield engine
