"""The completion service: a request of any dialect, in one form, answered by the engine and recorded.

CompletionRequest ─► CompletionService.prepare ─► PreparedCompletion ─► Engine.generate ─► ChatFormat.parse ─► CallLog.keep ─► Completion ─► record ─► the client
                                     │
                                     └─ as it grows: Deltas, for the dialects' streams
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar

import anyio

from agentrl.config.proxy import ProxyLimits
from agentrl.engine.protocol import Engine, PartialGeneration, Sampling
from agentrl.engine.soundness import Expected, fault_of
from agentrl.errors import EngineError
from agentrl.proxy.api_error import ApiError, invalid
from agentrl.proxy.bounds import check_conversation, check_count, check_images, check_length, least_tokens
from agentrl.proxy.call_log import request_digest
from agentrl.proxy.chat_format import AssistantMessage, ChatFormat, Message, Tool
from agentrl.proxy.fair_work import INLINE_BYTES, FairWork
from agentrl.proxy.session import Prompt, Session, SessionRole
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, beginning

Json = dict[str, Any]
T = TypeVar("T")
_BYTES_PER_TOKEN = 8
_REMEMBERED_TOKENS = 2**15
OBJECT_SCHEMA = '{"type":"object"}'
"""The schema of `response_format: json_object`."""


@dataclass(frozen=True)
class NamedTool:
    """The model must call this tool."""

    name: str


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """What a client asks for, in any dialect. None: what the session's defaults say."""

    model: str
    messages: Sequence[Message] = ()
    """The conversation, in the form of OpenAI's chat completions."""
    raw: str | list[int] | None = None
    """In place of messages: text or ids to go on from as they are."""
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    stop: Sequence[str] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    choices: int = 1
    """Replies that are asked for."""
    logprobs: bool = False
    """Whether they are to come with their logprobs."""
    top_logprobs: int = 0
    json_schema: str | None = None
    """JSON of the schema that the reply must satisfy."""


@dataclass
class PreparedCompletion:
    """A completion request on its way: what is sent to the engine, and how its replies are read."""

    id: str
    role: SessionRole
    """Who asks it."""
    ask: CompletionRequest
    prompt: Prompt
    sampling: Sampling
    tools: list[Tool] | None
    forced_ids: list[int]
    request: str = ""
    """Digest of what is asked."""
    recorded: dict[int, RecordedChoice] = field(default_factory=dict)
    """Replies that are known from before, by choice: whole, or their beginnings."""
    made: dict[int, tuple[Completion, list[str]]] = field(default_factory=dict)
    """Its replies that are whole and kept, with the ids of their tool calls; by choice."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def session(self) -> Session:
        """The session of the role that asks it."""
        return self.role.session

    def recall(self) -> None:
        """Take what is known of it from the session's call log."""
        if self.session.call_log is not None:
            self.recorded = self.session.call_log.take(self.request)
            self.id = next((choice.completion_id for choice in self.recorded.values()), self.id)


@dataclass(frozen=True)
class Completion:
    """An answer: its tokens, and what they say."""

    generation: Generation
    message: AssistantMessage

    @property
    def finish(self) -> Literal["stop", "length", "tool_calls"]:
        """Why it ended, in chat completions' words."""
        if self.message.tool_calls:
            return "tool_calls"
        return "length" if self.generation.finish == "length" else "stop"


@dataclass(frozen=True)
class Delta:
    """What a growing reply gained: a piece of reasoning, a piece of text, or a whole tool call."""

    reasoning: str = ""
    text: str = ""
    tool_call: Json | None = None


Emit = Callable[[Delta], Awaitable[None]]


class Send(Protocol):
    """Takes one event of a streamed reply, in a dialect's own form. Who has one that is `whole` has all of the reply."""

    async def __call__(self, event: Json, *, whole: bool = False) -> None: ...


class CompletionService:
    """The model behind an engine. `model` is the only name it answers to. With `training` it refuses what no trainer learns from."""

    def __init__(
        self,
        engine: Engine,
        chat_format: ChatFormat,
        model: str,
        limits: ProxyLimits,
        work: FairWork,
        *,
        training: bool = False,
    ) -> None:
        self.training = training
        self.engine = engine
        self.format = chat_format
        self.model = model
        self.limits = limits
        self.work = work
        self._token_text = lru_cache(_REMEMBERED_TOKENS)(self._decode_token)

    def prepare(self, role: SessionRole, ask: CompletionRequest, id_prefix: str) -> PreparedCompletion:
        """Render the prompt and settle how to sample; this may run in a thread. Raises ApiError for what cannot be answered."""
        session = role.session
        prompt, sampling, tools, forced = self._resolve(session, ask)
        if ask.logprobs:
            logprobs = ask.choices * sampling.max_new_tokens * (1 + ask.top_logprobs)
            check_count("logprobs", "logprobs (see max_tokens)", logprobs, self.limits.max_logprobs, "max_logprobs")
        request = request_digest(prompt.digest, prompt.images, sampling, tools, role.name)
        session.longest_prompt = max(session.longest_prompt, len(prompt.input_ids))
        return PreparedCompletion(
            f"{id_prefix}{uuid.uuid4().hex}", role, ask, prompt, sampling, tools, forced, request
        )

    def count(self, role: SessionRole, ask: CompletionRequest) -> int:
        """Tokens of the prompt that a request would be. Raises ApiError for what cannot be answered."""
        return len(self._resolve(role.session, ask)[0].input_ids)

    def _resolve(
        self, session: Session, ask: CompletionRequest
    ) -> tuple[Prompt, Sampling, list[Tool] | None, list[int]]:
        if ask.model != self.model:
            message = f"The model '{ask.model}' does not exist; this proxy serves '{self.model}'."
            raise ApiError(404, message, param="model", code="model_not_found")
        if ask.json_schema is not None and not self.engine.has_grammar:
            message = "This engine has no grammar to hold a reply to a JSON format; SGLang has, with --grammar-backend."
            raise ApiError(400, message, param="response_format", code="unsupported_value")
        check_count("n", "replies", ask.choices, self.limits.max_choices, "max_choices")
        check_conversation(ask.messages, ask.tools or (), ask.stop, self.limits)
        tools = None if ask.tool_choice == "none" else ask.tools or None
        self._check_least_length(ask, tools)
        forced = self._forced(ask)
        prompt = self.prompt(session, ask, tools).followed_by(forced)
        room = self.format.context_length - len(prompt.input_ids)
        check_length(len(prompt.input_ids), self.format.context_length)
        return prompt, self._sampling(session, ask, room, tools), tools, forced

    def _check_least_length(self, ask: CompletionRequest, tools: list[Tool] | None) -> None:
        """Refuse what cannot fit, before it is tokenised."""
        context, longest = self.format.context_length, self.format.longest_token
        if isinstance(ask.raw, list):
            check_length(len(ask.raw), context)
        elif longest is not None and isinstance(ask.raw, str):
            check_length(len(ask.raw) // longest, context, least=True)
        elif longest is not None:
            check_length(least_tokens(ask.messages, tools or (), longest), context, least=True)

    def prompt(self, session: Session, ask: CompletionRequest, tools: list[Tool] | None) -> Prompt:
        """What the engine is to be sent. Raises ApiError for messages that the format cannot render."""
        if ask.raw is not None:
            if isinstance(ask.raw, list):
                _check_ids(ask.raw, self.format.vocabulary)
            prompt = session.raw_prompt(self.format, ask.raw)
            if not prompt.input_ids:
                raise invalid("prompt", "it is empty")
            return prompt
        images = [part["image_url"]["url"] for message in ask.messages for part in _images(message)]
        if images and not (self.format.takes_images and self.engine.takes_images):
            raise invalid("messages", f"{self.model} does not take images")
        if images and self.training:
            raise invalid(
                "messages",
                "an image is refused in a training run, because its pixels are not trained on yet; `agentrl eval` and "
                "`agentrl serve` take images",
            )
        if any(not url.startswith("data:image/") for url in images):
            raise invalid("messages", "an image must be a data URL, such as data:image/png;base64,...; none is fetched")
        check_images(images, self.limits)
        try:
            return session.prompt(self.format, ask.messages, tools)
        except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
            raise ApiError(400, f"The messages cannot be rendered: {error}", param="messages") from error

    def _forced(self, ask: CompletionRequest) -> list[int]:
        if ask.tool_choice in ("auto", "none"):
            return []
        names = [tool["function"]["name"] for tool in ask.tools or []]
        if not names:
            raise ApiError(400, "'tool_choice' needs 'tools'.", param="tool_choice", code="invalid_value")
        name = ask.tool_choice.name if isinstance(ask.tool_choice, NamedTool) else None
        if name is not None and name not in names:
            message = f"'tool_choice' names {name!r}; the tools are {names}."
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
        try:
            return self.format.forced_call(name)
        except ValueError as error:
            raise ApiError(400, f"'tool_choice' is not supported: {error}.", param="tool_choice") from error

    def _sampling(self, session: Session, ask: CompletionRequest, room: int, tools: list[Tool] | None) -> Sampling:
        defaults = session.defaults
        stop_ids = self.format.stop_token_ids
        if tools and not ask.parallel_tool_calls and self.format.call_end_id is not None:
            stop_ids = [*stop_ids, self.format.call_end_id]
        return Sampling(
            max_new_tokens=min(ask.max_tokens or defaults.max_tokens or room, room),
            temperature=defaults.temperature if ask.temperature is None else ask.temperature,
            top_p=defaults.top_p if ask.top_p is None else ask.top_p,
            stop=ask.stop,
            stop_token_ids=stop_ids,
            seed=ask.seed,
            top_logprobs=ask.top_logprobs,
            json_schema=ask.json_schema,
        )

    async def reply(self, call: PreparedCompletion, index: int = 0, emit: Emit | None = None) -> Completion:
        """Generate and keep one reply; the `index`-th of its call. `emit` is awaited with what it gains as it grows.

        It enters the record with the others of its request: see `record`.
        """
        names: list[str] = []
        if emit is None:
            generation = await self._generate(call, index, names)
            reply = Completion(generation, await self._read(call, generation.output_ids, names, growing=False))
            await self._keep(call, index, reply, names)
            return reply
        sent = _Sent()
        shown: list[int] = []
        replies: list[Generation] = []
        newest, arrived = anyio.create_memory_object_stream[list[int]](1)

        async def generate() -> None:
            async with newest:

                def progress(ids: list[int]) -> None:
                    # `ids` is the whole reply so far: a state skipped here is part of the next one.
                    with suppress(anyio.WouldBlock):
                        newest.send_nowait(ids)

                replies.append(await self._generate(call, index, names, progress))

        with one_api_error():
            async with anyio.create_task_group() as group:
                group.start_soon(generate)
                async with arrived:
                    async for shown in arrived:
                        message = await self._read(call, shown, names, growing=True)
                        for delta in sent.growth(message, final=False):
                            await emit(delta)
        final = replies[0].output_ids
        if final[: len(shown)] != shown[: len(final)]:
            raise ApiError(503, "The engine took back what it had streamed of this reply.", code="engine_error")
        reply = Completion(replies[0], await self._read(call, final, names, growing=False))
        await self._keep(call, index, reply, names)
        for delta in sent.growth(reply.message, final=True):
            await emit(delta)
        return reply

    async def _read(
        self, call: PreparedCompletion, output_ids: list[int], tool_call_ids: list[str], *, growing: bool
    ) -> AssistantMessage:
        ids, stop = call.forced_ids + output_ids, call.ask.stop

        def read() -> AssistantMessage:
            if call.ask.raw is not None:
                return self.format.plain(ids, stop=stop, growing=growing)
            return self.format.parse(ids, call.tools, stop=stop, tool_call_ids=tool_call_ids, growing=growing)

        return await self._sized(call, _BYTES_PER_TOKEN * len(ids), read)

    async def _generate(
        self,
        call: PreparedCompletion,
        index: int,
        names: list[str],
        on_progress: Callable[[list[int]], None] | None = None,
    ) -> Generation:
        """One reply: the recorded one, whose tool calls' ids go to `names`, or a new one."""
        sampling, prompt, call_log = call.sampling, call.prompt, call.session.call_log
        recorded = call.recorded.get(index)
        expected = Expected(max_new_tokens=sampling.max_new_tokens, vocabulary=self.engine.vocabulary)
        if recorded is not None and fault_of(recorded.generation, expected) is not None:
            recorded = None  # an earlier version of agentrl kept it, or the disk changed it
        if recorded is not None and recorded.generation.finish == "abort" and sampling.json_schema is not None:
            recorded = None  # a grammar starts at a reply's first token
        if recorded is None:
            call.recorded.pop(index, None)
        if recorded is not None and recorded.generation.finish != "abort":
            names += recorded.tool_call_ids
            return recorded.generation
        if sampling.seed is not None and index:
            # The choices of one seeded request differ from each other, and are the same every time.
            sampling = replace(sampling, seed=sampling.seed + index)
        draft = PartialGeneration(recorded.generation if recorded else None)
        nothing = Generation(output_ids=[], logprobs=[], versions=[], finish="abort")
        try:
            async with call.session.activity.generations:
                _check_open(call)
                with call_log.watch(self._choice(call, index, [], nothing), draft) if call_log else nullcontext():
                    generation = await self.engine.generate(
                        prompt.input_ids, sampling, call.session.key, on_progress, images=prompt.images, draft=draft
                    )
        except EngineError as error:
            raise ApiError(503, str(error), code="engine_error") from error
        return await self._up_to_stop(call, generation)

    async def _up_to_stop(self, call: PreparedCompletion, generation: Generation) -> Generation:
        """A reply without what follows its first stop string. A server looks for one in what it makes itself: in a reply that
        went on from tokens of before, it misses one that began in them."""
        ids, stop = generation.output_ids, call.sampling.stop
        if not stop:
            return generation
        size = _BYTES_PER_TOKEN * len(ids)
        count = await self._sized(call, size, lambda: self.format.tokens_to_stop(ids, stop))
        return generation if count == len(ids) else beginning(generation, count, "stop")

    async def _sized(self, call: PreparedCompletion, size: int, work: Callable[[], T]) -> T:
        return await self.work.run(call.session.key, size, work) if size > INLINE_BYTES else work()

    def _choice(self, call: PreparedCompletion, index: int, names: list[str], generation: Generation) -> RecordedChoice:
        return RecordedChoice(call.request, call.id, index, names, generation)

    async def _keep(self, call: PreparedCompletion, index: int, reply: Completion, names: list[str]) -> None:
        """Enter a reply into the call log, unless it comes from there."""
        _check_open(call)
        known = call.recorded.get(index)
        replayed = known is not None and known.generation is reply.generation and known.tool_call_ids == names
        if call.session.call_log is not None and not replayed:
            await call.session.call_log.keep(self._choice(call, index, names, reply.generation))
        call.made[index] = reply, names

    async def logprobs(self, call: PreparedCompletion, generation: Generation) -> list[Json]:
        """The logprobs of a reply as OpenAI writes them, one entry a token."""
        size = logprob_bytes(len(generation.output_ids), call.ask.top_logprobs)
        return await self.work.run(call.session.key, size, lambda: self._logprobs(generation))

    def _logprobs(self, generation: Generation) -> list[Json]:
        content = [self._token(t, lp) for t, lp in zip(generation.output_ids, generation.logprobs, strict=True)]
        for entry, top in zip(content, generation.top_logprobs or [[]] * len(content), strict=True):
            entry["top_logprobs"] = [self._token(token, logprob) for logprob, token in top]
        return content

    def _token(self, token: int, logprob: float) -> Json:
        text, data = self._token_text(token)
        return {"token": text, "logprob": logprob, "bytes": data}

    def _decode_token(self, token: int) -> tuple[str, list[int]]:
        text = self.format.tokenizer.decode([token])
        return text, list(text.encode())


def record(calls: Sequence[PreparedCompletion]) -> None:
    """Enter the replies of one request into the record, all of them together.

    Nothing may be awaited between this and handing the last of them to the client: for a reply that nobody got, nobody did
    anything that earned a reward. Raises ApiError once the episode has ended.
    """
    for call in calls:
        _check_open(call)
    for call in calls:
        session, temperature = call.session, call.sampling.temperature
        for index, (reply, names) in sorted(call.made.items()):
            turn = session.add(call.id, call.prompt, reply.generation, temperature, reply.message.to_json(), index, call.role)
            turn.request, turn.tool_call_ids, turn.tools = call.request, names, bool(call.tools)
            if session.call_log is not None and (known := call.recorded.get(index)) is not None:
                session.call_log.replayed_tokens += min(len(known.generation.output_ids), len(turn.output_ids))


def _check_ids(ids: list[int], vocabulary: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary):
        outside = next(token for token in ids if not 0 <= token < vocabulary)
        raise invalid("prompt", f"{outside} is outside the vocabulary of {vocabulary} tokens")


def _check_open(call: PreparedCompletion) -> None:
    if call.session.closed:
        raise ApiError(409, "The episode of this key ended while the reply was being made.", code="episode_closed")


def logprob_bytes(tokens: int, top: int) -> int:
    """About how many bytes the logprobs of so many tokens take as JSON."""
    return 64 * tokens * (1 + top)


def _images(message: Message) -> list[Json]:
    content = message.get("content")
    return [part for part in content if part["type"] == "image_url"] if isinstance(content, list) else []


@dataclass
class _Sent:
    """How much of a growing message the client has."""

    text: str = ""
    reasoning: str = ""
    calls: int = 0

    def growth(self, message: AssistantMessage, *, final: bool) -> list[Delta]:
        """The deltas from what was sent to `message`. Until the end, an unfinished character is held back."""
        deltas: list[Delta] = []
        reasoning = message.reasoning or ""
        if piece := _piece(self.reasoning, reasoning, final=final):
            deltas.append(Delta(reasoning=piece))
            self.reasoning = reasoning
        if piece := _piece(self.text, message.content, final=final):
            deltas.append(Delta(text=piece))
            self.text = message.content
        deltas += [Delta(tool_call=call) for call in message.tool_calls[self.calls :]]
        self.calls = len(message.tool_calls)
        return deltas


def _piece(sent: str, text: str, *, final: bool) -> str:
    whole = final or not text.endswith("\N{REPLACEMENT CHARACTER}")
    return text[len(sent) :] if whole and text.startswith(sent) else ""


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
