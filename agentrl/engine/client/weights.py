"""The engine over SGLang servers, real and embedded alike: what changes the weights of all of them.

    update_weights ─┬─ a whole model: brought near each server, read by those that can ─► announce, pause ─► load ─► resume
                    └─ LoRA adapters: loaded beside those in use ─► announce ─► open replies are aborted, and go on under them

    this process        SGLangEngine: weights, pauses, which servers there are; replies too (`ReplyClient`)
                             │ `fleet.replicas`
    worker processes    ReplicaEngine: replies alone, from the same servers

What changes all servers is done by one process, one change after the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import anyio

from agentrl.engine.adapters import Adapter, adapters_in
from agentrl.engine.client.fleet import RETRY_S, EngineLimits, Fleet, FleetReplica, Restart
from agentrl.engine.client.replica import ABORT_POLL_S, FailureReport, FleetState, ReplicaReport
from agentrl.engine.client.reply import ReplyClient
from agentrl.engine.client.server import ServedModel, SGLangServer, open_session
from agentrl.engine.client.stream import VERSION_DIGITS
from agentrl.engine.protocol import PauseMode
from agentrl.errors import EngineError
from agentrl.system.tasks import background_tasks, in_thread

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 1.0
"""How long aborted replies may take to come back before the server is paused all the same."""
CONTROL_TIMEOUT_S = 120.0
"""Bound of a weight update, and of starting a server again."""

Send = Callable[[], Awaitable[bool]]
"""Send new weights to the paused servers; False: they are to read them."""
WeightTransfer = Callable[[str, Path], AbstractAsyncContextManager[Path]]
"""Have a directory on the machine of the server at a URL, for the length of a context, which yields where it is there."""


class SGLangEngine(ReplyClient):
    """One or more SGLang servers that serve the same weights. Open it with `sglang_engine`."""

    def __init__(
        self,
        fleet: Fleet,
        model: ServedModel,
        pause_mode: PauseMode,
        transfer: WeightTransfer | None = None,
    ) -> None:
        super().__init__(fleet, model)
        self._model.keeps_cache = pause_mode == "in_place"
        self.pause_mode = pause_mode
        """The way in which weight updates interrupt replies."""
        self._transfer = transfer or (lambda url, directory: nullcontext(directory))
        self._checkpoint: Path | None = None
        self._retired: Collection[Adapter] = ()
        """The adapters before, that requests on their way may still name."""
        self._ends_replies = False
        """Whether open replies are being ended: paused in mode `abort`."""
        self._updating = anyio.Lock()

    async def update_weights(self, checkpoint: Path, version: int, send: Send | None = None) -> float:
        """Interrupt replies, load `checkpoint` into every server as `version`, go on.

        Args:
            checkpoint: Directory of a whole model; or of LoRA adapters, one or one for each role (`agentrl.engine.adapters`), which are put
                on the model that is served: nothing is paused then.
            version: The number that its tokens will name.
            send: Another way to bring a whole model in. A server that returns later reads `checkpoint`.

        Returns:
            The pause in seconds.

        Raises:
            EngineError: They cannot be used, and what was served before still is.
        """
        if not 0 <= version < 10**VERSION_DIGITS:
            raise EngineError(
                f"{version} is no version of weights: it must be a number of at most {VERSION_DIGITS} digits, from 0 on"
            )
        adapters = await in_thread(adapters_in, checkpoint, version)
        directories: dict[SGLangServer, Path] = {}
        async with self._updating, AsyncExitStack() as stack:  # until its end no server comes into service

            async def bring(server: SGLangServer) -> None:
                directories[server] = there = await stack.enter_async_context(self._transfer(server.url, checkpoint))
                if server.abilities.prepares_weights:
                    await server.post("/prepare_weights", {"model_path": str(there)}, CONTROL_TIMEOUT_S)

            if not adapters:
                await self.fleet.call_all(bring, mark_down_refusing=True)
            started = time.perf_counter()
            # Done to the end also when the caller is cancelled, or servers of different weights would stay in service. It is bounded.
            with anyio.CancelScope(shield=True):
                self._model.newest_version = max(version, self._model.newest_version or 0)
                if adapters:
                    await self._swap_adapters(adapters)
                else:
                    await self._swap_weights(checkpoint, version, directories, send)
            ended = time.perf_counter()
        return ended - started

    async def _swap_weights(
        self, checkpoint: Path, version: int, directories: Mapping[SGLangServer, Path], send: Send | None
    ) -> None:
        model, mode = self._model, self.pause_mode
        try:
            # Told to the replicas with the pause, so that all know it before any token is made by the new weights.
            model.updates += 1
            # Replies under an adapter come back, and go on without it: it is put away before servers go on.
            await self.pause("abort" if model.adapters else mode)
            if send is None or not await send():
                await self.fleet.call_all(
                    lambda server: self._load(server, directories[server], version, mode), mark_down_refusing=True
                )
            await self.fleet.call_all(self._unload_all)
            self._checkpoint, self._retired = checkpoint, ()
            model.version, model.adapters = version, {}
        finally:
            with anyio.move_on_after(CONTROL_TIMEOUT_S):
                await self.resume()

    async def _load(self, server: SGLangServer, directory: Path, version: int, mode: PauseMode) -> None:
        body = {
            "model_path": str(directory),
            "weight_version": str(version),
            "flush_cache": mode != "in_place",
            "abort_all_requests": False,
        }
        await server.post("/update_weights_from_disk", body, CONTROL_TIMEOUT_S)

    async def _swap_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        """Load adapters beside those in use, then interrupt replies, which go on under them.

        Servers keep a request's adapter to its end, so a reply that finishes meanwhile is whole, and of the adapter before. Requests name
        new adapters once every server has all of them: those of all roles are of one version.

        Raises:
            EngineError: Every server refused them, and has those in use as before.
        """
        bound, model, wanted = self.fleet.limits.hang_timeout_s, self._model, list(adapters.values())
        try:
            await self.fleet.call_all(lambda server: self._load_adapters(server, wanted), mark_down_refusing=True)
        except EngineError:
            await self.fleet.call_all(lambda server: self._unload(server, wanted))
            raise
        retired, self._retired = self._retired, model.adapters.values()
        model.adapters = adapters
        self.fleet.replicas.announce()
        await self.fleet.replicas.acknowledged()
        await self.fleet.call_all(lambda server: server.abort_all(bound))
        # SGLang waits for the last reply under one, which has just been aborted.
        await self.fleet.call_all(lambda server: self._unload(server, retired))

    async def _load_adapters(self, server: SGLangServer, adapters: Iterable[Adapter]) -> None:
        for adapter in adapters:
            async with self._transfer(server.url, Path(adapter.directory)) as there:
                body = {"lora_name": adapter.name, "lora_path": str(there)}
                await server.post("/load_lora_adapter", body, CONTROL_TIMEOUT_S)

    async def _unload(self, server: SGLangServer, adapters: Iterable[Adapter]) -> None:
        for adapter in adapters:
            with suppress(EngineError):  # it may have none of that name; a lost server shows itself by the next call
                await server.post("/unload_lora_adapter", {"lora_name": adapter.name}, self.fleet.limits.hang_timeout_s)

    async def _unload_all(self, server: SGLangServer) -> None:
        await self._unload(server, [*self._retired, *self._model.adapters.values()])

    async def pause(self, mode: PauseMode) -> None:
        """Stop producing tokens on every server until `resume`. The replicas know it before it begins."""
        fleet = self.fleet
        if fleet.running.is_set():
            fleet.running = anyio.Event()
        self._ends_replies = mode == "abort"
        fleet.replicas.announce()
        await fleet.replicas.acknowledged()
        await fleet.call_all(lambda server: self._pause(server, mode))

    async def _pause(self, server: SGLangServer, mode: PauseMode) -> None:
        bound = self.fleet.limits.hang_timeout_s
        if mode == "abort":
            # SGLang's own abort looks once a second whether all replies have ended. Ended before, they cost no second.
            with anyio.move_on_after(ABORT_TIMEOUT_S):
                while self.fleet.open_replies(server):
                    await server.abort_all(bound)
                    await anyio.sleep(ABORT_POLL_S)
            # The server puts a reply away only after it has sent it.
            await anyio.sleep(4 * ABORT_POLL_S)
        await server.post("/pause_generation", {"mode": mode}, bound)

    async def resume(self) -> None:
        """Produce tokens again."""
        bound = self.fleet.limits.hang_timeout_s
        try:
            await self.fleet.call_all(lambda server: server.post("/continue_generation", {}, bound))
        finally:
            self._ends_replies = False
            self.fleet.running.set()
            self.fleet.replicas.announce()

    async def sync_weights(self, server: SGLangServer) -> None:
        """Give a server that returned the current weights, and put it into service.

        Raises:
            EngineError: It does not answer, or serves others.
        """
        bound, model = self.fleet.limits.hang_timeout_s, self._model
        async with self._updating:
            # A server that hung may have missed the end of a pause, and still hold replies that went on elsewhere.
            await server.post("/continue_generation", {}, bound)
            await server.abort_all(bound)
            await self._unload_all(server)
            served = await server.probe(bound)
            if self._checkpoint is not None:
                async with self._transfer(server.url, self._checkpoint) as there:
                    await self._load(server, there, model.version or 0, "abort")
            elif not model.adapters and served != model.version:
                raise EngineError(f"{server.url} serves version {served}, not {model.version}")
            await self._load_adapters(server, model.adapters.values())
            self.fleet.begin_service(server)

    def state(self) -> FleetState:
        """Return what replicas must know now."""
        fleet = self.fleet
        return FleetState(
            number=fleet.replicas.number,
            servers={server.address: server.abilities for server in fleet.servers},
            serving=[server.address for server in fleet.in_service()],
            running=fleet.running.is_set(),
            ends_replies=self._ends_replies,
            model=replace(self._model),
            limits=fleet.limits,
        )

    def take_report(self, replica: FleetReplica, report: ReplicaReport) -> None:
        """Note what a replica has taken over and counted."""
        self.fleet.bad_replies += report.bad_replies
        self.fleet.last_failure = report.last_failure or self.fleet.last_failure
        for server in self.fleet.servers:
            server.tokens += report.tokens.get(server.address, 0)
        self.fleet.replicas.took_over(replica, report.number, report.in_flight)

    async def handle_failure(self, failure: FailureReport, replica: str) -> None:
        """Take a server that a replica cannot use out of service, or, where it answers here, let the replica use it again."""
        fleet = self.fleet
        server = next((one for one in fleet.servers if one.address == failure.url), None)
        if server is None or not server.serving or failure.number < fleet.replicas.number:
            return  # the replica is sent what has changed since then, and tries again
        if not failure.unreachable:
            fleet.mark_down(server, f"{replica} says: {failure.reason}")
            return
        await fleet.check(server)
        if server.serving:
            log.warning("%s answers, it stays in service; %s says: %s", server.url, replica, failure.reason)
            await anyio.sleep(min(RETRY_S, fleet.limits.health_interval_s))
            fleet.replicas.announce()


@asynccontextmanager
async def sglang_engine(
    urls: Sequence[str],
    *,
    pause_mode: PauseMode = "retract",
    limits: EngineLimits | None = None,
    restart: Restart | None = None,
    transfer: WeightTransfer | None = None,
    vocabulary: int | None = None,
) -> AsyncIterator[SGLangEngine]:
    """Open a client of the servers at `urls`, with its connections, for the length of the context.

    `transfer`: how weights come to the servers; None: they read them where they lie. `vocabulary`: how many rows the output layer of the model has that they serve; None: ids are not held to it.
    """
    async with open_session() as http, background_tasks() as tasks:
        model = ServedModel(vocabulary=vocabulary)
        fleet = Fleet([SGLangServer(http, url, model) for url in urls], limits or EngineLimits(), restart)
        model.version = model.newest_version = await fleet.join()
        engine = SGLangEngine(fleet, model, pause_mode=pause_mode, transfer=transfer)
        for server in fleet.servers:
            tasks.start_soon(fleet.monitor, server, engine.sync_weights)
        yield engine
