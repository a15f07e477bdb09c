"""The completion service: a request of any dialect, in one form, answered by the engine and recorded.

CompletionRequest ─► prepare: prompt by the longest recorded prefix, Sampling ─► Engine.generate ─► ChatFormat.parse ─► CallLog.commit ─► Completion
                                                                                      │                                                    │
                                                                                      └─ as it grows: Deltas ─► the client ◄─ record ◄─────┘
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.protocol import Engine, OnProgress, Sampling
from agentrl.proxy.call_log import request_digest
from agentrl.proxy.chat_format import AssistantMessage, ChatFormat, Message
from agentrl.proxy.completion import (
    Completion,
    CompletionRequest,
    Emit,
    Json,
    PreparedCompletion,
    alterations_of,
)
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.errors import ApiError, invalid
from agentrl.proxy.limits import ProxyLimits, check_choices, check_length, least_tokens
from agentrl.proxy.prefill import check_prefill, forced_ids, prefill_ids
from agentrl.proxy.session import Prompt, SamplingDefaults, Session, SessionRole
from agentrl.proxy.token_bytes import bytes_of_tokens, logprob_entries
from agentrl.record.conversations import system_prompt
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, beginning
from agentrl.record.trajectory import TurnText

T = TypeVar("T")
BYTES_PER_TOKEN = 4
"""So many bytes of a text, about, are one token."""
_BYTES_PER_LOGPROB = 64
INLINE_BYTES = 16 * 2**10
"""Work on fewer bytes takes about a millisecond: a thread would cost more than it saves."""


async def run_sized(size: int, work: Callable[[], T], threads: anyio.CapacityLimiter) -> T:
    """Return the result of `work`, which goes through `size` bytes: many are gone through in a thread."""
    return work() if size <= INLINE_BYTES else await in_thread(work, limiter=threads)


@dataclass(eq=False, kw_only=True)
class CompletionService:
    """The model behind an engine."""

    engine: Engine
    chat_format: ChatFormat
    model: str
    """The name that it is served under."""
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    training: bool = False
    """Whether what it records is trained on. Images, which are not, are refused then."""
    generated_tokens: int = 0
    """How many it has had generated so far."""

    def __post_init__(self) -> None:
        self.threads = anyio.CapacityLimiter(self.limits.threads)
        self._bytes_of = bytes_of_tokens(self.chat_format.tokenizer)

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its reply may have together: what the model was made for, or the engine holds, whichever is less."""
        return min(self.chat_format.context_length, self.engine.context_length or self.chat_format.context_length)

    def prepare(self, role: SessionRole, request: CompletionRequest, id_prefix: str) -> PreparedCompletion:
        """Render the prompt and settle how to sample; this may run in a thread.

        Raises:
            ApiError: the request cannot be answered.
        """
        self._check_role(role)
        chat_format = self._template(request)
        prompt = self._prompt(role.session, request, chat_format)
        sampling = self._sampling(role.session.defaults, request, len(prompt.input_ids))
        # Without the engine's bound: a request is known again by other servers, and by a replay, which has none.
        digest = request_digest(prompt, sampling, request.shown_tools, role.name)
        room = self.context_length - len(prompt.input_ids)
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        return PreparedCompletion(
            id=f"{id_prefix}{secrets.token_hex(16)}",
            role=role,
            request=request,
            prompt=prompt,
            sampling=sampling,
            chat_format=chat_format,
            digest=digest,
        )

    def _check_role(self, role: SessionRole) -> None:
        """Check that a call names a role, where roles have adapters.

        Raises:
            ApiError: 400: it names none.
        """
        if role.session.adapters and not role.name:
            message = (
                f"the call names no role, and must be one of {role.session.known_roles()}; ask as a role: "
                '`episode.role("NAME")`, or the key KEY.NAME.'
            )
            raise ApiError(400, message, param="model", code="invalid_role")

    def _template(self, request: CompletionRequest) -> ChatFormat:
        try:
            return self.chat_format.with_template(request.template_options)
        except ValueError as error:
            raise invalid("chat_template_kwargs", str(error).rstrip(".")) from error

    def _prompt(self, session: Session, request: CompletionRequest, chat_format: ChatFormat) -> Prompt:
        """Return the prompt, with what the model is taken to have said.

        Raises:
            ApiError: 400: the request cannot be answered by this model and engine.
        """
        self._check(session, request)
        messages, begun, forced = request.messages, Message(), list[int]()
        if request.continues:
            begun, messages = check_prefill(messages), messages[:-1]
        if request.tool_choice not in ("auto", "none"):
            forced = forced_ids(chat_format, request.tools or (), request.named_tool)
        try:
            if request.raw is not None:
                prompt = session.raw_prompt(chat_format, request.raw)
            else:
                prompt = session.prompt(chat_format, messages, request.shown_tools)
        except (ValueError, KeyError, TypeError, OSError, SyntaxError, RecursionError) as error:
            raise ApiError(400, f"The messages cannot be rendered: {error}", param="messages") from error
        if begun or forced:
            prompt = replace(prompt, prefill=begun.get("content") or "")
            prompt = prompt.with_forced(prefill_ids(chat_format, prompt.input_ids, begun) + forced)
        check_length(session, request.prompt_field, len(prompt.input_ids), self.context_length)
        return prompt

    def _check(self, session: Session, request: CompletionRequest) -> None:
        """Check what can be said of a request before any of it is rendered.

        Raises:
            ApiError: 400: it cannot be answered by this model and engine.
            invalid: 400: as well.
        """
        raw, longest = request.raw, self.chat_format.longest_token
        if request.json_schema is not None and not self.engine.has_grammar:
            message = "This engine has no grammar to hold a reply to a JSON format; SGLang has, with --grammar-backend."
            raise ApiError(400, message, param="response_format", code="unsupported_value")
        check_choices(request.choices)
        self._check_ids([token for token, _ in request.alterations.get("logit_bias", ())], "logit_bias")
        if isinstance(raw, list):
            self._check_ids(raw, "prompt")
        elif raw == "":
            raise invalid("prompt", "it is empty")
        elif longest is not None:
            least = least_tokens(raw, request.messages, longest)
            check_length(session, request.prompt_field, least, self.context_length, least=True)
        if images := request.images:
            if not (self.chat_format.takes_images and self.engine.takes_images):
                raise invalid("messages", f"{self.model} does not take images")
            if self.training:
                problem = "an image is refused in a training run, because its pixels are not trained on yet; `agentrl eval` and `agentrl serve` take images"
                raise invalid("messages", problem)
            if not all(url.startswith("data:image/") for url in images):
                raise invalid("messages", "an image is a data URL, such as data:image/png;base64,...; none is fetched")

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        # The model may say ids that its tokenizer has no words for: its output layer is often padded.
        vocabulary = self.engine.vocabulary or len(self.chat_format.tokenizer)
        if outside := [token for token in ids if not 0 <= token < vocabulary]:
            raise invalid(field, f"{outside[0]} is outside the vocabulary of {vocabulary} tokens")

    def _sampling(self, defaults: SamplingDefaults, request: CompletionRequest, prompt_tokens: int) -> Sampling:
        room = self.chat_format.context_length - prompt_tokens
        if defaults.is_bound and defaults.max_tokens:
            room = min(room, defaults.max_tokens)
        stop_ids, call_end = self.chat_format.stop_token_ids, self.chat_format.special("</tool_call>")
        if request.shown_tools and not request.parallel_tool_calls and call_end is not None:
            stop_ids = [*stop_ids, call_end]
        return Sampling(
            max_new_tokens=min(request.max_tokens or defaults.max_tokens or room, room),
            temperature=defaults.temperature if request.temperature is None else request.temperature,
            top_p=defaults.top_p if request.top_p is None else request.top_p,
            stop=request.stop,
            stop_token_ids=stop_ids,
            seed=request.seed,
            top_logprobs=request.top_logprobs,
            json_schema=request.json_schema,
            **request.alterations,
        )

    async def reply(self, call: PreparedCompletion, index: int = 0, emit: Emit | None = None) -> Completion:
        """Generate one reply, and commit it to the call log. It enters the record with the others of its request: see `record`.

        Args:
            call: the request.
            index: which of its replies.
            emit: awaited with what the reply gains as it grows.

        Raises:
            ApiError: the episode has ended.
            EngineError: the engine failed.
        """
        sent, known = SentDeltas(), call.recorded.get(index)
        tool_call_ids = list(call.request.tool_call_ids if known is None else known.tool_call_ids)
        if known is not None:
            generation = known.generation
        elif emit is None:
            generation = await self._generate(call, index)
        else:
            generation = await self._generate_shown(call, index, tool_call_ids, sent, emit)
        message = await self._read(call, generation.output_ids, tool_call_ids, growing=False)
        reply = Completion(generation, message, await self._logprobs(call, generation))
        call.check_open()
        if known is None and (call_log := call.session.call_log) is not None:
            number = call.first_choice + index
            await call_log.commit(RecordedChoice(call.digest, call.id, number, reply.tool_call_ids, generation))
        call.made[index] = reply
        if emit is not None:
            for delta in sent.growth(reply.message, final=True):
                await emit(delta)
        return reply

    async def _generate(
        self, call: PreparedCompletion, index: int, on_progress: OnProgress | None = None
    ) -> Generation:
        """Return a new reply. Raises EngineError."""
        sampling, prompt = call.sampling, call.prompt
        if sampling.seed is not None:
            # The choices of one seeded request differ from each other, and are the same every time.
            sampling = replace(sampling, seed=sampling.seed + index)
        generation = await self.engine.generate(
            prompt.input_ids,
            sampling,
            call.session.key,
            on_progress,
            images=prompt.images,
            adapter=call.role.adapter,
        )
        self.generated_tokens += len(generation.output_ids)
        if not sampling.stop:
            return generation
        # A server looks for a stop string in what it makes itself: where the reply went on from tokens of before, it misses one that began in them.
        ids = generation.output_ids
        count = await self._by_tokens(len(ids), partial(self.chat_format.tokens_to_stop, ids, sampling.stop))
        return generation if count == len(ids) else beginning(generation, count, "stop")

    async def _generate_shown(
        self, call: PreparedCompletion, index: int, tool_call_ids: list[str], sent: SentDeltas, emit: Emit
    ) -> Generation:
        """Return a new reply, with every state of it shown to the client as soon as the client has taken the one before."""
        newest, arrived = anyio.create_memory_object_stream[list[int]](1)
        generations: list[Generation] = []

        def on_progress(ids: list[int]) -> None:
            # `ids` is the reply so far, and all that the client is shown of it is kept: a state skipped here is part of the next one.
            with suppress(anyio.WouldBlock):
                newest.send_nowait(ids)

        async def generate() -> None:
            async with newest:
                generations.append(await self._generate(call, index, on_progress))

        async with anyio.create_task_group() as group:
            group.start_soon(generate)
            async with arrived:
                async for ids in arrived:
                    message = await self._read(call, ids, tool_call_ids, growing=True)
                    for delta in sent.growth(message, final=False):
                        await emit(delta)
        return generations[0]

    async def _read(
        self, call: PreparedCompletion, output_ids: list[int], tool_call_ids: list[str], *, growing: bool
    ) -> AssistantMessage:
        """Return the message that the ids of a reply say, tool calls and reasoning apart from its text."""
        request, prompt = call.request, call.prompt
        ids = [*prompt.forced_ids, *output_ids]
        if request.raw is not None:
            read = partial(call.chat_format.plain, ids, stop=request.stop, growing=growing)
        else:
            read = partial(
                call.chat_format.parse,
                ids,
                request.shown_tools,
                stop=request.stop,
                tool_call_ids=tool_call_ids,
                growing=growing,
                prefill=prompt.prefill,
                prompt_ids=prompt.asked_ids,
            )
        message = await self._by_tokens(len(ids), read)
        # What the client wrote of the reasoning is no part of the reply.
        is_written = request.continues and request.messages[-1].get("reasoning_content")
        return replace(message, reasoning=None, reasoning_tokens=0) if is_written else message

    async def _by_tokens(self, tokens: int, work: Callable[[], T]) -> T:
        return await run_sized(BYTES_PER_TOKEN * tokens, work, self.threads)

    async def _logprobs(self, call: PreparedCompletion, generation: Generation) -> list[Json] | None:
        """Return the logprobs of a reply as OpenAI writes them, one entry a token, if they are asked for."""
        if not call.request.logprobs:
            return None
        size = _BYTES_PER_LOGPROB * len(generation.output_ids) * (1 + call.request.top_logprobs)
        return await run_sized(size, partial(logprob_entries, generation, self._bytes_of), self.threads)


def record(calls: Sequence[PreparedCompletion]) -> None:
    """Enter the replies of one request into the record, all of them together.

    Nothing may be awaited between this and handing the last of them to the client: for a reply that nobody got, nobody did
    anything that earned a reward.

    Raises:
        ApiError: the episode has ended.
    """
    for call in calls:
        call.check_open()
    for call in calls:
        if call.repeated:
            continue
        session, role, asked, prompt = call.session, call.role, call.request, call.prompt
        temperature = 1.0 if call.sampling.greedy else call.sampling.temperature
        system = "" if prompt.parent else system_prompt(asked.messages)
        tools = tuple(tool["function"]["name"] for tool in asked.shown_tools or ())
        for index, reply in sorted(call.made.items()):
            message = reply.message.to_json()
            turn = session.record.add(
                call.id, prompt.parent, prompt.input_ids, reply.generation, temperature, prompt.images, prompt.digest
            )
            turn.role, turn.adapter, turn.choice_index = role.name, role.adapter, call.first_choice + index
            turn.model, turn.text = asked.model, TurnText(system, tools, message.get("content") or "")
            # Rows of a padded output layer that no word is for were never trained, and are not to be.
            turn.trained = role.trained and max(turn.output_ids, default=0) < len(call.chat_format.tokenizer)
            turn.request, turn.tool_call_ids, turn.tools = call.digest, reply.tool_call_ids, bool(tools)
            turn.alterations = alterations_of(call.sampling)
            session.remember(prompt, message, turn)
