"""`/v1/chat/completions`: one request checked, answered and recorded.

body ─► ChatRequest ─► Session.prompt ─► Engine.generate ─► ChatFormat.parse ─► Session.add ─► completion JSON
                                              │
                                              └─ on progress: the reply so far, as deltas (stream=True)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

from agentrl.engine.protocol import Engine, Generation, Sampling
from agentrl.errors import EngineError
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.chat_format import AssistantMessage, ChatFormat
from agentrl.proxy.chat_request import ChatRequest, Json, NamedTool
from agentrl.proxy.session import Prompt, Session

Send = Callable[[Json], Awaitable[None]]


@dataclass
class _Call:
    """One request on its way: what is sent to the engine, and how its replies are read."""

    session: Session
    request: ChatRequest
    prompt: Prompt
    sampling: Sampling
    tools: list[Json] | None
    forced_ids: list[int]
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str) -> Json:
        """What every reply object starts with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}


class ChatCompletions:
    """The endpoint. `model` is the only model name it serves."""

    def __init__(self, engine: Engine, chat_format: ChatFormat, model: str) -> None:
        self._engine = engine
        self._format = chat_format
        self._model = model

    def prepare(self, session: Session, request: ChatRequest) -> _Call:
        """Render the prompt and settle how to sample. Raises ApiError for what cannot be answered."""
        if request.model != self._model:
            message = f"The model '{request.model}' does not exist; this proxy serves '{self._model}'."
            raise ApiError(404, message, param="model", code="model_not_found")
        messages = [message.to_json() for message in request.messages]
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or []] or None
        if request.tool_choice == "none":
            tools = None
        try:
            prompt = session.prompt(self._format, messages, tools)
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(400, f"The messages cannot be rendered: {error}", param="messages") from error

        forced: list[int] = []
        if request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool):
            name = request.tool_choice.function.name if isinstance(request.tool_choice, NamedTool) else None
            try:
                forced = self._format.forced_call(name)
            except ValueError as error:
                raise ApiError(400, f"'tool_choice' is not supported: {error}.", param="tool_choice") from error
            prompt = Prompt(prompt.input_ids + forced, prompt.parent, prompt.history)

        room = self._format.context_length - len(prompt.input_ids)
        if room < 1:
            raise ApiError(
                400,
                f"This model's maximum context length is {self._format.context_length} tokens, but the messages "
                f"take {len(prompt.input_ids)}.",
                param="messages",
                code="context_length_exceeded",
            )
        return _Call(session, request, prompt, self._sampling(session, request, room, tools), tools, forced)

    def _sampling(self, session: Session, request: ChatRequest, room: int, tools: list[Json] | None) -> Sampling:
        defaults = session.defaults
        limit = request.max_completion_tokens or request.max_tokens or defaults.max_tokens or room
        stop_ids = self._format.stop_token_ids
        if tools and request.parallel_tool_calls is False and self._format.call_end_id is not None:
            stop_ids = [*stop_ids, self._format.call_end_id]
        return Sampling(
            max_new_tokens=min(limit, room),
            temperature=defaults.temperature if request.temperature is None else request.temperature,
            top_p=defaults.top_p if request.top_p is None else request.top_p,
            stop=request.stop_strings,
            stop_token_ids=stop_ids,
            seed=request.seed,
            top_logprobs=request.top_logprobs or 0,
        )

    async def complete(self, call: _Call) -> Json:
        """The whole reply as one `chat.completion`."""
        count = call.request.n or 1
        choices: list[Json] = [{}] * count
        usages: list[Generation] = []

        async def one(index: int) -> None:
            generation = await self._generate(call, index)
            usages.append(generation)
            message = self._format.parse(
                call.forced_ids + generation.output_ids, call.tools, stop=call.request.stop_strings
            )
            choices[index] = {
                "index": index,
                "message": self._record(call, generation, message),
                "finish_reason": _finish_reason(generation, message),
                "logprobs": self._logprobs(call, generation),
            }

        if count == 1:
            await one(0)
        else:
            await _all_of(one, count)
        return {**call.head("chat.completion"), "choices": choices, "usage": _usage(call, usages)}

    async def stream(self, call: _Call, send: Send) -> None:
        """The reply as `chat.completion.chunk`s, sent as the tokens arrive. Errors are sent as OpenAI's error JSON."""
        count = call.request.n or 1
        wants_usage = bool(call.request.stream_options and call.request.stream_options.include_usage)
        usages: list[Generation] = []
        head = call.head("chat.completion.chunk")

        async def one(index: int) -> None:
            call_ids: list[str] = []
            replies: list[Generation] = []
            sent = _Sent()

            async def emit(delta: Json, **extra: Any) -> None:
                choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **extra}
                chunk = {**head, "choices": [choice]}
                await send({**chunk, "usage": None} if wants_usage else chunk)

            def read(output_ids: list[int], *, growing: bool) -> AssistantMessage:
                ids, stop = call.forced_ids + output_ids, call.request.stop_strings
                return self._format.parse(ids, call.tools, stop=stop, call_ids=call_ids, growing=growing)

            await emit({"role": "assistant", "content": ""})
            newest, arrived = anyio.create_memory_object_stream[list[int]](1)

            async def generate() -> None:
                async with newest:

                    def progress(ids: list[int]) -> None:
                        # `ids` is the whole reply so far: a state skipped here is part of the next one.
                        with suppress(anyio.WouldBlock):
                            newest.send_nowait(ids)

                    replies.append(await self._generate(call, index, progress))

            async with anyio.create_task_group() as group:
                group.start_soon(generate)
                async with arrived:
                    async for output_ids in arrived:
                        for delta in sent.growth(read(output_ids, growing=True), final=False):
                            await emit(delta)
            generation = replies[0]
            usages.append(generation)
            message = read(generation.output_ids, growing=False)
            self._record(call, generation, message)
            for delta in sent.growth(message, final=True):
                await emit(delta)
            await emit({}, finish_reason=_finish_reason(generation, message), logprobs=self._logprobs(call, generation))

        try:
            await _all_of(one, count)
            if wants_usage:
                await send({**head, "choices": [], "usage": _usage(call, usages)})
        except ApiError as error:
            await send(error.content())

    async def _generate(
        self, call: _Call, index: int, on_progress: Callable[[list[int]], None] | None = None
    ) -> Generation:
        sampling = call.sampling
        if sampling.seed is not None and index:
            # The choices of one seeded request differ from each other, and are the same every time.
            sampling = Sampling(**{**vars(sampling), "seed": sampling.seed + index})
        try:
            return await self._engine.generate(call.prompt.input_ids, sampling, call.session.key, on_progress)
        except EngineError as error:
            raise ApiError(503, str(error), code="engine_error") from error

    def _record(self, call: _Call, generation: Generation, message: AssistantMessage) -> Json:
        if call.session.closed:
            raise ApiError(409, "The episode of this key ended while the reply was being made.", code="episode_closed")
        reply = message.to_json()
        call.session.add(call.id, call.prompt, generation, call.sampling.temperature, reply)
        return reply

    def _logprobs(self, call: _Call, generation: Generation) -> Json | None:
        if not call.request.logprobs:
            return None
        tokens = zip(generation.output_ids, generation.logprobs, strict=True)
        content = [self._token(token, logprob) for token, logprob in tokens]
        for entry, top in zip(content, generation.top_logprobs or [[]] * len(content), strict=True):
            entry["top_logprobs"] = [self._token(token, logprob) for logprob, token in top]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Json:
        text = self._format.tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


@dataclass
class _Sent:
    """How much of a growing message the client has."""

    content: str = ""
    reasoning: str = ""
    calls: int = 0

    def growth(self, message: AssistantMessage, *, final: bool) -> list[Json]:
        """The deltas from what was sent to `message`. Until the end, an unfinished character is held back."""
        deltas: list[Json] = []
        reasoning = message.reasoning or ""
        if (
            len(reasoning) > len(self.reasoning)
            and reasoning.startswith(self.reasoning)
            and _complete(reasoning, final)
        ):
            deltas.append({"reasoning_content": reasoning[len(self.reasoning) :]})
            self.reasoning = reasoning
        content = message.content
        if len(content) > len(self.content) and content.startswith(self.content) and _complete(content, final):
            deltas.append({"content": content[len(self.content) :]})
            self.content = content
        for index, call in enumerate(message.tool_calls[self.calls :], self.calls):
            empty = {**call, "function": {**call["function"], "arguments": ""}}
            deltas.append({"tool_calls": [{"index": index, **empty}]})
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": call["function"]["arguments"]}}]})
        self.calls = len(message.tool_calls)
        return deltas


def _complete(text: str, final: bool) -> bool:
    return final or not text.endswith("\N{REPLACEMENT CHARACTER}")


def _finish_reason(generation: Generation, message: AssistantMessage) -> str:
    return "tool_calls" if message.tool_calls else generation.finish


def _usage(call: _Call, generations: Sequence[Generation]) -> Json:
    prompt, completion = len(call.prompt.input_ids), sum(len(g.output_ids) for g in generations)
    usage: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if cached := max((g.cached_tokens for g in generations), default=0):
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage


async def _all_of(call: Callable[[int], Coroutine[Any, Any, None]], count: int) -> None:
    try:
        async with anyio.create_task_group() as group:
            for index in range(count):
                group.start_soon(call, index)
    except* ApiError as group_error:
        raise _first(group_error) from None


def _first(group: BaseExceptionGroup[ApiError]) -> ApiError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ApiError)
    return error
