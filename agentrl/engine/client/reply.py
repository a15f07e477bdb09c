"""One uninterrupted reply, from whichever servers are in service.

    generate ─► choose a server ─► stream /generate ─► stop | length ─► Generation
                    ▲                    │
                    │                    ├─ abort (a weight update in mode `abort`): keep the partial ids
                    │                    ├─ lost (the server died, or hangs): keep the partial ids
                    └── go on from them ◄┴─ bad (what it said cannot be right): keep what was sound before it

In modes `retract` and `in_place` a weight update leaves replies open, and the server reports which weights made which
token. However a reply was interrupted, the caller sees one. Which servers there are to choose from is `Fleet`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio

from agentrl.engine.adapters import adapter_of
from agentrl.engine.client.fleet import Fleet
from agentrl.engine.client.server import ServedModel, SGLangServer
from agentrl.engine.client.stream import BadReplyError, PartialReplyError
from agentrl.engine.protocol import OnProgress, Sampling
from agentrl.errors import EngineError
from agentrl.record.tokens import Generation, ImageSpan, join_generations

ABORTED_RETRY_S = 0.005
"""How long to wait before resubmitting a reply that something other than our own pause aborted."""
BAD_REPLIES_SPARE = 2
"""A call fails when it got so many bad replies more than there are servers."""

_NOTHING = Generation(output_ids=[], logprobs=[], versions=[], finish="abort")


@dataclass(frozen=True)
class _Request:
    """One reply that is wanted, as `ReplyClient.generate` was asked for it."""

    input_ids: list[int]
    sampling: Sampling
    images: Sequence[ImageSpan]
    on_progress: OnProgress | None
    adapter: str
    """The role whose adapter answers; "": the only one, or the served model."""


class ReplyClient:
    """The side of an engine that replies are asked of: the engine's process and each of its replicas have one."""

    def __init__(self, fleet: Fleet, model: ServedModel) -> None:
        self.fleet = fleet
        self._model = model

    @property
    def version(self) -> int:
        """The weight version that serves new tokens: that of all adapters together, where there are some."""
        return next((adapter.version for adapter in self._model.adapters.values()), self._model.version or 0)

    @property
    def has_grammar(self) -> bool:
        """Whether every server can hold a reply to a JSON schema."""
        return all(server.abilities.has_grammar for server in self.fleet.servers)

    @property
    def takes_images(self) -> bool:
        """Whether the model that the servers serve sees images."""
        return all(server.abilities.has_image_understanding for server in self.fleet.servers)

    @property
    def vocabulary(self) -> int | None:
        """Rows of the served model's output layer; None: not known."""
        return self._model.vocabulary

    @property
    def context_length(self) -> int | None:
        """Tokens that a prompt and its reply may have together on every server; None: no server says."""
        known = (server.abilities.max_req_input_len for server in self.fleet.servers)
        return min((length for length in known if length is not None), default=None)

    @property
    def in_flight(self) -> int:
        """Replies being generated, those of replicas included."""
        return sum(map(self.fleet.open_replies, self.fleet.servers))

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
        adapter: str = "",
    ) -> Generation:
        """Return one uninterrupted reply; see `Engine.generate`.

        One that must satisfy a JSON schema, or that has penalties, reports no progress: a grammar, and the count of a reply's tokens,
        start at its first token, so if it is interrupted it starts over.

        Raises:
            EngineError: It took too long, a server refused it, or tokens that were shown are lost.
        """
        if sampling.in_one_piece:
            on_progress = None
        request = _Request(input_ids, sampling, images, on_progress, adapter)
        done = _NOTHING
        bad: list[SGLangServer] = []
        with anyio.move_on_after(self.fleet.limits.request_timeout_s):
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
            f"no reply within {self.fleet.limits.request_timeout_s:g} s ({len(done.output_ids)} tokens so far; "
            f"{len(self.serving)} of {len(self.fleet.servers)} servers in service); are the servers overloaded, or is "
            f"`rollout.episode_timeout_s` too small?{self.fleet.last_failure and f' The last failure: {self.fleet.last_failure}'}"
        )

    async def _part(
        self, server: SGLangServer, bad: list[SGLangServer], request: _Request, done: Generation
    ) -> Generation:
        """Return the rest of a reply, or what came of it. `bad` lists who gave this call bad replies, and grows.

        Raises:
            EngineError: It cannot go on at another server.
        """
        shown = 0
        adapter = adapter_of(self._model.adapters, request.adapter)

        def show(ids: list[int]) -> None:
            nonlocal shown
            shown = len(ids)
            assert request.on_progress is not None
            request.on_progress(done.output_ids + ids)

        try:
            part = await server.generate(
                request.input_ids + done.output_ids,
                replace(request.sampling, max_new_tokens=request.sampling.max_new_tokens - len(done.output_ids)),
                images=request.images,
                adapter=adapter,
                on_ids=None if request.on_progress is None else show,
            )
            server.bad_in_a_row = 0
        except PartialReplyError as failure:
            self.fleet.note(failure, server)
            part = failure.partial or _NOTHING
            if isinstance(failure, BadReplyError):
                self._note_bad(server, bad, str(failure))
        except EngineError as refusal:
            if adapter is None:
                raise
            # Where another one is in use by now, this one was unloaded.
            if adapter == adapter_of(self._model.adapters, request.adapter):
                if adapter.name not in str(refusal):
                    raise
                lost = f"{server.url} lost the adapter that it was given; has it room, by --max-loaded-loras? {refusal}"
                self._note_bad(server, bad, lost)
                self.fleet.mark_down(server, lost)
            part = _NOTHING
        server.tokens += len(part.output_ids)
        if len(part.output_ids) < shown:
            # Whoever reads the stream may have acted on these tokens, so no others may take their place.
            raise EngineError(
                f"{shown - len(part.output_ids)} tokens were streamed of which {server.url} did not say, before it was lost, which "
                "weights made them"
            )
        return part

    def _note_bad(self, server: SGLangServer, bad: list[SGLangServer], why: str) -> None:
        bad.append(server)
        if len(bad) >= len(self.fleet.servers) + BAD_REPLIES_SPARE:
            raise EngineError(f"{len(bad)} replies in a row could not be used; the last: {why}")

    async def health(self) -> None:
        """Return when every server in service answers.

        Raises:
            EngineError: One does not, or none is in service.
        """
        serving = self.fleet.in_service()
        if not serving:
            raise EngineError("no server is in service")
        for server in serving:
            await server.get("/health", self.fleet.limits.hang_timeout_s)

    def end_session(self, session: str) -> None:
        """Forget which server a session prefers."""
        self.fleet.router.forget(session)
