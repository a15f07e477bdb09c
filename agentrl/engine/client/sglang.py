"""The engine over SGLang servers; it drives real SGLang servers and the embedded one alike.

    generate ─► choose a server ─► stream /generate ─► stop | length ─► Generation
                    ▲                    │
                    │                    ├─ abort (a weight update in mode `abort`): keep the partial ids
                    │                    ├─ lost (the server died, or hangs): keep the partial ids
                    └── go on from them ◄┴─ bad (what it said cannot be right): keep what was sound before it

In modes `retract` and `in_place` a weight update leaves replies open, and the server reports which weights made which
token. However a reply was interrupted, the caller sees one. Which servers there are to choose from is `Fleet`'s.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import anyio

from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.threads import in_thread
from agentrl.engine.client.adapters import Adapters, adapters_in
from agentrl.engine.client.fleet import EngineLimits, Fleet, Restart
from agentrl.engine.client.server_errors import BadReplyError, LocalShortageError, ServerLostError
from agentrl.engine.client.sglang_server import SHORTAGE_RETRY_S, ServedModel, SGLangServer
from agentrl.engine.client.staging import staged
from agentrl.engine.client.version_tracker import VERSION_DIGITS, version_number
from agentrl.engine.protocol import OnProgress, PartialGeneration, PauseMode, Sampling
from agentrl.engine.soundness import Expected, fault_of
from agentrl.errors import EngineError
from agentrl.record.tokens import Generation, ImageSpan, join_generations

CONTROL_TIMEOUT_S = 120.0
"""Bound of a weight update, and of starting a server again."""
ABORTED_RETRY_S = 0.005
"""How long to wait before resubmitting a reply that something other than our own pause aborted."""
IDLE_CONNECTION_S = 1.0
"""An idle connection is closed after at most twice this. SGLang closes it after 5 s, and a request sent at that moment would
find its server lost."""
BAD_REPLIES_SPARE = 2
"""A call fails when it got so many bad replies more than there are servers."""

Load = Callable[[], Awaitable[None]]
"""Bring new weights into the paused servers."""
Place = Callable[[str, Path], AbstractAsyncContextManager[Path]]
"""Have a directory on the machine of the server at a URL, for the length of a context, which yields where it is there."""
_NOTHING = Generation(output_ids=[], logprobs=[], versions=[], finish="abort")


@dataclass(frozen=True)
class _Request:
    """One reply that is wanted, as `SGLangEngine.generate` was asked for it."""

    input_ids: list[int]
    sampling: Sampling
    session: str
    images: Sequence[ImageSpan]
    on_progress: OnProgress | None
    partial: PartialGeneration | None
    adapter: str
    """The role whose adapter answers; "": the only one, or the served model."""


class SGLangEngine:
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
        self.fleet = fleet
        self._model = model
        self._model.keeps_cache = pause_mode == "in_place"
        self._asked_pause_mode = pause_mode
        self._limits = limits
        self._place = place
        self._version = version
        self._checkpoint: Path | None = None
        self._adapters = Adapters()
        """The LoRA adapters of new tokens; none: they are the served model's own."""
        self._retired = Adapters()
        """The adapters before, that requests on their way may still name."""
        self._updating = anyio.Lock()

    @property
    def version(self) -> int:
        """The weight version that serves new tokens."""
        return self._version

    @property
    def pause_mode(self) -> PauseMode:
        """The way in which weight updates interrupt replies: as asked, but `abort` where a server does not report versions by token."""
        return self._asked_pause_mode if all(s.reports_spans for s in self.fleet.servers) else "abort"

    @property
    def has_grammar(self) -> bool:
        """Whether every server can hold a reply to a JSON schema."""
        return all(server.has_grammar for server in self.fleet.servers)

    @property
    def takes_images(self) -> bool:
        """Whether the model that the servers serve sees images."""
        return all(server.takes_images for server in self.fleet.servers)

    @property
    def vocabulary(self) -> int | None:
        """Rows of the served model's output layer; None: not known."""
        return self._model.vocabulary

    @property
    def in_flight(self) -> int:
        """Replies being generated."""
        return sum(server.in_flight for server in self.fleet.servers)

    @property
    def serving(self) -> list[str]:
        """URLs of the servers in service."""
        return [server.url for server in self.fleet.in_service()]

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        partial: PartialGeneration | None = None,
        adapter: str = "",
    ) -> Generation:
        """Return one uninterrupted reply; see `Engine.generate`.

        One that must satisfy a JSON schema, or that has penalties, reports no progress: a grammar, and the count of a reply's tokens,
        start at its first token, so if it is interrupted it starts over.

        Raises:
            EngineError: It took longer than `engine.request_timeout_s`, a server refused it, or tokens that were shown are lost.
        """
        if sampling.in_one_piece:
            on_progress = partial = None
        request = _Request(input_ids, sampling, session, images, on_progress, partial, adapter)
        done = (partial and partial.start) or _NOTHING
        if fault_of(done, Expected(max_new_tokens=sampling.max_new_tokens, vocabulary=self.vocabulary)) is not None:
            done = _NOTHING
        bad: list[SGLangServer] = []
        with self.fleet.router.calling(session), anyio.move_on_after(self._limits.request_timeout_s):
            while True:
                if len(done.output_ids) >= sampling.max_new_tokens:
                    return replace(done, finish="length")
                await self.fleet.running.wait()
                async with self.fleet.streams:
                    server = await self.fleet.choose(session, bad)
                    part = await self._part(server, bad, request, done)
                if part.finish != "abort" or not sampling.in_one_piece:
                    done = join_generations(done, part)
                if done.finish != "abort":
                    return done
                if self.fleet.running.is_set():
                    await anyio.sleep(ABORTED_RETRY_S)
        raise EngineError(
            f"no reply within {self._limits.request_timeout_s:g} s ({len(done.output_ids)} tokens so far; "
            f"{len(self.serving)} of {len(self.fleet.servers)} servers in service); are the servers overloaded, or is "
            f"`engine.request_timeout_s` too small?{self.fleet.last_failure and f' The last failure: {self.fleet.last_failure}'}"
        )

    async def _part(
        self, server: SGLangServer, bad: list[SGLangServer], request: _Request, done: Generation
    ) -> Generation:
        """Return the rest of a reply, or what came of it. `bad` lists who gave this call bad replies, and grows.

        Raises:
            EngineError: It cannot go on at another server.
        """
        shown = 0

        def show(ids: list[int]) -> None:
            nonlocal shown
            shown = len(ids)
            if request.on_progress is not None:
                request.on_progress(done.output_ids + ids)

        try:
            part = await self._go_on(server, request, done, show)
            server.bad_in_a_row = 0
        except ServerLostError as lost:
            self.fleet.mark_down(server, str(lost))
            part = lost.partial or _NOTHING
        except BadReplyError as reply:
            self.fleet.note_bad_reply(server, str(reply))
            bad.append(server)
            if len(bad) >= len(self.fleet.servers) + BAD_REPLIES_SPARE:
                raise EngineError(f"{len(bad)} replies in a row could not be used; the last: {reply}") from reply
            part = reply.partial or _NOTHING
        except LocalShortageError as lacking:
            self.fleet.note_shortage(str(lacking))
            await anyio.sleep(SHORTAGE_RETRY_S)
            part = lacking.partial or _NOTHING
        if len(part.output_ids) < shown:
            # Whoever reads the stream may have acted on these tokens, so no others may take their place.
            raise EngineError(
                f"{shown - len(part.output_ids)} tokens were streamed of which {server.url} did not say, before it was lost, which "
                "weights made them"
            )
        return part

    async def _go_on(self, server: SGLangServer, request: _Request, done: Generation, show: OnProgress) -> Generation:
        sampling, partial = request.sampling, request.partial

        def watch(so_far: Callable[[], Generation]) -> None:
            if partial is not None:
                partial.so_far = lambda: join_generations(done, so_far())

        adapter = self._adapters.of(request.adapter)
        try:
            return await server.generate(
                request.input_ids + done.output_ids,
                replace(sampling, max_new_tokens=sampling.max_new_tokens - len(done.output_ids)),
                session=request.session,
                images=request.images,
                adapter=adapter,
                on_ids=None if request.on_progress is None else show,
                watch=watch,
            )
        except EngineError as error:
            blamed = isinstance(error, ServerLostError | BadReplyError | LocalShortageError)
            if blamed or adapter is None:
                raise
            if adapter is not self._adapters.of(request.adapter):
                return _NOTHING  # it named an adapter that the server has unloaded meanwhile
            if adapter.name not in str(error):
                raise
            raise ServerLostError(f"{server.url} lost the adapter that it was given: {error}") from error

    def end_session(self, session: str) -> None:
        """Forget which server a session prefers."""
        self.fleet.router.forget(session)

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Interrupt replies, load `checkpoint` into every server as `version`, go on. Returns the pause in seconds.

        Servers of this machine read a copy in shared memory that is made before the pause. LoRA adapters, one or one for each role
        (`agentrl.engine.adapter_folders`), are put on the model that is served: nothing is paused then.
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
                await self.pause(self.pause_mode)
                self._model.updates += 1
                self._model.newest_version = max(version, self._model.newest_version or 0)
                await load()
                self._checkpoint, self._version, self._adapters = checkpoint, version, Adapters()
                self._model.version = version
            finally:
                with anyio.move_on_after(CONTROL_TIMEOUT_S):
                    await self.resume()
            return time.perf_counter() - started

    @asynccontextmanager
    async def _changing(self, version: int) -> AsyncIterator[None]:
        """Change what all servers serve: alone, and to the end, whoever is cancelled meanwhile, as servers of different weights would stay in service otherwise.

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
        """
        bound = self._limits.hang_timeout_s
        async with self._changing(version):
            started = time.perf_counter()
            self._model.newest_version = max(version, self._model.newest_version or 0)
            await self.fleet.call_all(lambda server: self._load_adapters(server, adapters), mark_down_refusing=True)
            retired, self._retired = self._retired, self._adapters
            self._version, self._adapters = version, adapters
            await self.fleet.call_all(lambda server: server.abort_all(bound))
            swapped_s = time.perf_counter() - started
            # SGLang waits for the last reply under one, which has just been aborted.
            await self.fleet.call_all(lambda server: server.unload_adapters(retired, bound))
            return swapped_s

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

    async def _load_adapters(self, server: SGLangServer, adapters: Adapters) -> None:
        async with AsyncExitStack() as stack:
            there = [
                replace(one, directory=await stack.enter_async_context(self._place_of(server, one.directory)))
                for one in adapters
            ]
            await server.load_adapters(there, CONTROL_TIMEOUT_S)

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

    async def health(self) -> None:
        """Return when every server in service answers; raise EngineError when one does not, or none is in service."""
        await self.fleet.health()

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
            await server.unload_adapters(self._adapters, bound)
            served = await server.probe(bound)
            if self._checkpoint is not None:
                async with self._place_of(server, self._checkpoint) as there:
                    await self._load(server, there, self._model.version or 0, "abort")
            elif not self._adapters and served != self._version:
                raise EngineError(f"{server.url} serves version {served}, not {self._version}")
            await self._load_adapters(server, self._adapters)
            server.serving = True


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
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22) as http,
        background_tasks() as tasks,
    ):
        limits = limits or EngineLimits()
        model = ServedModel(vocabulary)
        fleet = Fleet([SGLangServer(http, url, model) for url in urls], limits, restart)
        version = model.version = model.newest_version = await fleet.join()
        engine = SGLangEngine(fleet, model, version, pause_mode=pause_mode, limits=limits, place=place)
        for server in fleet.servers:
            tasks.start_soon(fleet.monitor, server, engine.catch_up)
        yield engine
