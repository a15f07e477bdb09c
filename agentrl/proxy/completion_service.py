"""The completion service: a request of any dialect, in one form, answered by the engine and recorded.

CompletionRequest ─► prepare ─► PreparedCompletion ─► Engine.generate ─► ChatFormat.parse ─► CallLog.commit ─► Completion ─► record ─► the client
                                     │
                                     └─ as it grows: Deltas, for the dialects' streams
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync as in_thread

from agentrl.config.proxy import ProxyLimits
from agentrl.engine.protocol import Engine, OnProgress
from agentrl.errors import EngineError
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.chat_format import AssistantMessage, ChatFormat
from agentrl.proxy.completion import Completion, Emit, Json, PreparedCompletion, alterations_of
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.model_names import ModelNames
from agentrl.proxy.preparation import Preparation
from agentrl.proxy.session import Session
from agentrl.proxy.token_bytes import bytes_of_tokens
from agentrl.record.conversations import system_prompt
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.soundness import Expected, fault_of
from agentrl.record.tokens import Generation, beginning
from agentrl.record.trajectory import TurnText

T = TypeVar("T")
_BYTES_PER_TOKEN = 8
_REMEMBERED_TOKENS = 2**15
INLINE_BYTES = 16 * 2**10
"""Work on fewer bytes takes about a millisecond: a thread would cost more than it saves."""


async def run_sized(session: Session, size: int, work: Callable[[], T], threads: anyio.CapacityLimiter) -> T:
    """Return the result of `work`, which goes through `size` bytes: many are gone through in a thread, one piece of a session at a time."""
    if size <= INLINE_BYTES:
        return work()
    async with session.activity.heavy_work:
        return await in_thread(work, limiter=threads)


class CompletionService:
    """The model behind an engine. With `training` it refuses what no trainer learns from, with `refuse_altered` altered sampling."""

    def __init__(
        self,
        engine: Engine,
        chat_format: ChatFormat,
        model: ModelNames,
        limits: ProxyLimits,
        threads: anyio.CapacityLimiter,
        *,
        training: bool = False,
        refuse_altered: bool = False,
    ) -> None:
        self.preparation = preparation = Preparation(
            engine=engine,
            format=chat_format,
            model=model,
            limits=limits,
            training=training,
            refuse_altered=refuse_altered,
        )
        self.prepare = preparation.prepare
        self.count = preparation.count
        self._engine = engine
        self._format = chat_format
        self._threads = threads
        self._bytes_of = bytes_of_tokens(chat_format.tokenizer)
        self.generated_tokens = 0
        self._token_text = lru_cache(_REMEMBERED_TOKENS)(self._decode_token)

    async def reply(self, call: PreparedCompletion, index: int = 0, emit: Emit | None = None) -> Completion:
        """Generate and keep one reply. It enters the record with the others of its request: see `record`.

        Args:
            call: the request.
            index: which of its replies.
            emit: awaited with what the reply gains as it grows.

        Raises:
            ApiError: the engine failed, or the episode has ended.
        """
        sent = SentDeltas()
        known = self._known(call, index)
        tool_call_ids = list(call.request.tool_call_ids if known is None else known.tool_call_ids)
        if known is not None:
            generation = known.generation
        elif emit is None:
            generation = await self._generate(call, index)
        else:
            generation = await self._generate_shown(call, index, tool_call_ids, sent, emit)
        reply = Completion(generation, await self._read(call, generation.output_ids, tool_call_ids, growing=False))
        await self._keep(call, index, reply)
        if emit is not None:
            for delta in sent.growth(reply.message, final=True):
                await emit(delta)
        return reply

    def _known(self, call: PreparedCompletion, index: int) -> RecordedChoice | None:
        """Return the recorded reply; None: it is generated."""
        known = call.recorded.get(index)
        if known is None:
            return None
        # An earlier version of agentrl kept it, or the disk changed it.
        expected = Expected(max_new_tokens=call.sampling.max_new_tokens, vocabulary=self._engine.vocabulary)
        if fault_of(known.generation, expected) is not None:
            del call.recorded[index]
            return None
        return known

    async def _generate(
        self, call: PreparedCompletion, index: int, on_progress: OnProgress | None = None
    ) -> Generation:
        """Return a new reply.

        Raises:
            ApiError: 503: the engine failed.
        """
        sampling, prompt = call.sampling, call.prompt
        if sampling.seed is not None and index:
            # The choices of one seeded request differ from each other, and are the same every time.
            sampling = replace(sampling, seed=sampling.seed + index)
        try:
            async with call.session.activity.generations:
                call.check_open()
                generation = await self._engine.generate(
                    prompt.input_ids,
                    sampling,
                    call.session.key,
                    on_progress,
                    images=prompt.images,
                    adapter=call.adapter,
                )
        except EngineError as error:
            raise ApiError(503, str(error), code="engine_error") from error
        self.generated_tokens += len(generation.output_ids)
        return await self._up_to_stop(call, generation)

    async def _generate_shown(
        self,
        call: PreparedCompletion,
        index: int,
        tool_call_ids: list[str],
        sent: SentDeltas,
        emit: Emit,
    ) -> Generation:
        """Return the same, with every state of it shown to the client as soon as the client has taken the one before.

        Raises:
            ApiError: 503: the engine failed, or took back what was shown.
        """
        newest, arrived = anyio.create_memory_object_stream[list[int]](1)
        shown: list[int] = []
        generations: list[Generation] = []

        def on_progress(ids: list[int]) -> None:
            # `ids` is the whole reply so far: a state skipped here is part of the next one.
            with suppress(anyio.WouldBlock):
                newest.send_nowait(ids)

        async def generate() -> None:
            async with newest:
                generations.append(await self._generate(call, index, on_progress))

        with one_api_error():
            async with anyio.create_task_group() as group:
                group.start_soon(generate)
                async with arrived:
                    async for shown in arrived:
                        message = await self._read(call, shown, tool_call_ids, growing=True)
                        for delta in sent.growth(message, final=False):
                            await emit(delta)
        (generation,) = generations
        final = generation.output_ids
        if final[: len(shown)] != shown[: len(final)]:
            raise ApiError(503, "The engine took back what it had streamed of this reply.", code="engine_error")
        return generation

    async def _up_to_stop(self, call: PreparedCompletion, generation: Generation) -> Generation:
        """Return a reply without what follows its first stop string.

        A server looks for one in what it makes itself: in a reply that went on from tokens of before, it misses one that began in
        them.
        """
        ids, stop = generation.output_ids, call.sampling.stop
        if not stop:
            return generation
        size = _BYTES_PER_TOKEN * len(ids)
        count = await self._sized(call, size, lambda: self._format.tokens_to_stop(ids, stop))
        return generation if count == len(ids) else beginning(generation, count, "stop")

    async def _read(
        self, call: PreparedCompletion, output_ids: list[int], tool_call_ids: list[str], *, growing: bool
    ) -> AssistantMessage:
        ids, stop = call.forced_ids + output_ids, call.request.stop

        def read() -> AssistantMessage:
            if call.request.raw is not None:
                return self._format.plain(ids, stop=stop, growing=growing)
            chat_format = call.chat_format or self._format
            prefill = call.prompt.prefill
            asked = call.prompt.input_ids[: len(call.prompt.input_ids) - len(call.forced_ids)]
            message = chat_format.parse(
                ids,
                call.tools,
                stop=stop,
                tool_call_ids=tool_call_ids,
                growing=growing,
                prefill=prefill,
                prompt_ids=asked,
            )
            # What the client wrote of the reasoning is no part of the reply.
            is_written = call.request.continues and call.request.messages[-1].get("reasoning_content")
            return replace(message, reasoning=None, reasoning_tokens=0) if is_written else message

        return await self._sized(call, _BYTES_PER_TOKEN * len(ids), read)

    async def _sized(self, call: PreparedCompletion, size: int, work: Callable[[], T]) -> T:
        return await run_sized(call.session, size, work, self._threads)

    async def _keep(self, call: PreparedCompletion, index: int, reply: Completion) -> None:
        """Enter a reply into the call log, unless it comes from there."""
        call.check_open()
        known, call_log = call.recorded.get(index), call.session.call_log
        replayed = (
            known is not None and known.generation is reply.generation and known.tool_call_ids == reply.tool_call_ids
        )
        if call_log is not None and not replayed:
            await call_log.commit(call.choice(index, reply.tool_call_ids, reply.generation))
        call.made[index] = reply

    async def logprobs(self, call: PreparedCompletion, generation: Generation) -> list[Json]:
        """Return the logprobs of a reply as OpenAI writes them, one entry a token."""
        size = logprob_bytes(len(generation.output_ids), call.request.top_logprobs)
        return await self._sized(call, size, lambda: self._logprobs(generation))

    def _logprobs(self, generation: Generation) -> list[Json]:
        content = [self._token(t, lp) for t, lp in zip(generation.output_ids, generation.logprobs, strict=True)]
        for entry, top in zip(content, generation.top_logprobs or [[]] * len(content), strict=True):
            entry["top_logprobs"] = [self._token(token, logprob) for logprob, token in top]
        return content

    def _token(self, token: int, logprob: float) -> Json:
        text, data = self._token_text(token)
        return {"token": text, "logprob": logprob, "bytes": data}

    def _decode_token(self, token: int) -> tuple[str, list[int]]:
        data = self._bytes_of(token)
        return data.decode(errors="replace"), list(data)


def record(calls: Sequence[PreparedCompletion]) -> None:
    """Enter the replies of one request into the record, all of them together.

    Nothing may be awaited between this and handing the last of them to the client: for a reply that nobody got, nobody did
    anything that earned a reward.

    Raises:
        ApiError: the episode has ended.
    """
    for call in calls:
        call.check_open()
    calls[0].session.tries.recorded(calls[0].digest)
    for call in calls:
        if call.repeated:
            continue
        session, asked = call.session, call.request
        temperature = 1.0 if call.sampling.greedy else call.sampling.temperature
        system = "" if call.prompt.parent else system_prompt(asked.messages)
        tools = tuple(tool["function"]["name"] for tool in call.tools or ())
        for index, reply in sorted(call.made.items()):
            message, choice_index = reply.message.to_json(), call.first_choice + index
            turn = session.add(call.id, call.prompt, reply.generation, temperature, message, choice_index, call.role)
            turn.model, turn.text = asked.model, TurnText(system, tools, message.get("content") or "")
            turn.request, turn.tool_call_ids, turn.tools = call.digest, reply.tool_call_ids, bool(tools)
            turn.alterations = alterations_of(call.sampling)


def logprob_bytes(tokens: int, top: int) -> int:
    """Return about how many bytes the logprobs of so many tokens take as JSON."""
    return 64 * tokens * (1 + top)


async def all_of(call: Callable[[int], Coroutine[Any, Any, None]], count: int) -> None:
    """Run `call(0)` to `call(count - 1)` at the same time. The first ApiError ends them all, and is raised as it is."""
    with one_api_error():
        if count == 1:
            await call(0)
        else:
            async with anyio.create_task_group() as group:
                for index in range(count):
                    group.start_soon(call, index)


@contextmanager
def one_api_error() -> Iterator[None]:
    """Raise the first ApiError of a group of tasks as it is."""
    try:
        yield
    except* ApiError as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
