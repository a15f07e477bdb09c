"""The shapes of one completion, of any dialect.

CompletionRequest ─► PreparedCompletion (its prompt, and the Sampling that the engine is sent) ─► Completion
                                                                         └─ as it grows: Deltas
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from agentrl.engine.protocol import Sampling
from agentrl.proxy.chat_format import AssistantMessage, ChatFormat, Message, Tool
from agentrl.proxy.errors import ApiError
from agentrl.proxy.session import Conversation, Prompt, Session, SessionRole
from agentrl.record.recorded_choice import RecordedChoice, recorded_choice
from agentrl.record.tokens import Generation

Json = dict[str, Any]
OBJECT_SCHEMA = '{"type":"object"}'
"""The schema of `response_format: json_object`."""


@dataclass(frozen=True)
class NamedTool:
    """The model must call this tool."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Alterations:
    """The fields of `Sampling` that nothing but a request sets, and that make tokens be drawn from another distribution; by default neutral."""

    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Sequence[tuple[int, float]] = ()

    def to_json(self) -> Json:
        """Return those that are not neutral, by name."""
        asked = {item.name: vars(self)[item.name] for item in fields(self) if vars(self)[item.name] != item.default}
        return asked | {"logit_bias": [list(pair) for pair in self.logit_bias]} if self.logit_bias else asked


def alterations_of(sampling: Sampling) -> Json:
    """Return what makes the tokens of a reply no samples of softmax(logits / temperature), by name; empty where they are.

    A temperature above 0 is no alteration, whatever it is: it is recorded with the turn, and the trainer's logprobs are taken at it.
    """
    found: Json = {}
    if sampling.temperature == 0:
        found["temperature"] = 0
    elif sampling.top_p < 1:
        found["top_p"] = sampling.top_p
    own = {item.name: getattr(sampling, item.name) for item in fields(Alterations)}
    found |= Alterations(**own).to_json()
    return found | {"json_schema": True} if sampling.json_schema is not None else found


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """The request of a client, in any dialect. None: what the session's defaults say."""

    model: str
    messages: Sequence[Message] = ()
    """The conversation, in the form of OpenAI's chat completions."""
    continues: bool = False
    """Whether the reply goes on with the last message, which is the assistant's; `agentrl.proxy.prefill`."""
    raw: str | list[int] | None = None
    """In place of messages: text or ids to go on from as they are."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the chat template, by name."""
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    tool_call_ids: Sequence[str] = ()
    """Ids of the reply's first tool calls, for dialects in which clients send none back; those of further calls are made up."""
    stop: Sequence[str] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    alterations: Alterations = Alterations()
    choices: int = 1
    """Replies that are asked for."""
    logprobs: bool = False
    """Whether they are to come with their logprobs."""
    top_logprobs: int = 0
    json_schema: str | None = None
    """JSON of the schema that the reply must satisfy."""
    ignored: Sequence[str] = ()
    """Names of what the client asked for and does not get, since it changes nothing that is sampled."""


@dataclass(frozen=True)
class Completion:
    """A whole reply: its tokens, and what they say."""

    generation: Generation
    message: AssistantMessage
    logprobs: list[Json] | None = None
    """Its logprobs as OpenAI writes them, one entry a token, where they were asked for."""

    @property
    def finish(self) -> Literal["stop", "length", "tool_calls"]:
        """Why it ended, in chat completions' words."""
        was_cut = self.message.unfinished and (self.generation.finish == "length" or self.message.stopped_by)
        if self.message.tool_calls and not was_cut:
            return "tool_calls"
        return "length" if self.generation.finish == "length" else "stop"

    @property
    def tool_call_ids(self) -> list[str]:
        """Ids of the tool calls in it."""
        return [call["id"] for call in self.message.tool_calls]


@dataclass
class PreparedCompletion:
    """A completion request on its way: what is sent to the engine, and how its replies are read."""

    id: str
    role: SessionRole
    """The role that asks."""
    request: CompletionRequest
    prompt: Prompt
    sampling: Sampling
    tools: list[Tool] | None
    forced_ids: list[int]
    """The end of the prompt that the model is taken to have said, so that it calls a tool."""
    chat_format: ChatFormat | None = None
    """The chat format that its replies are read with, where its template has options of its own."""
    digest: str = ""
    """A digest that tells the request from others; `agentrl.proxy.call_log`."""
    adapter: str = ""
    """The role whose LoRA adapter answers, where roles have adapters of their own."""
    first_choice: int = 0
    """Index of its first reply among those of the request: one of several prompts comes after the replies of those before it."""
    recorded: dict[int, RecordedChoice] = field(default_factory=dict)
    """Replies that are known from before, by choice: whole, or their beginnings."""
    repeated: bool = False
    """Whether its replies are in the record already, as its client did not get them."""
    made: dict[int, Completion] = field(default_factory=dict)
    """Its replies that are whole and kept, by choice."""
    before: Conversation | None = None
    """The conversation that the session holds and that it goes on from."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def session(self) -> Session:
        """The session of the role that asks."""
        return self.role.session

    def check_open(self) -> None:
        """Check that its reply can still be recorded.

        Raises:
            ApiError: the episode has ended.
        """
        if self.session.closed:
            raise ApiError(409, "The episode of this key ended while the reply was being made.", code="episode_closed")

    def choice(self, index: int, tool_call_ids: list[str], generation: Generation) -> RecordedChoice:
        """Return one of its replies, whole or the beginning of one, as the call log keeps it."""
        return RecordedChoice(self.digest, self.id, self.first_choice + index, tool_call_ids, generation)


def recall(calls: Sequence[PreparedCompletion]) -> None:
    """Take what is known of a request, one call for each of its prompts, from the session's call log.

    All that a request asks for is one entry of the log, so that equal prompts in it are told apart, and it has one id, which the
    client is told.
    """
    call_log = calls[0].session.call_log
    known = call_log.take(calls[0].digest) if call_log is not None else {}
    for call in calls:
        call.recorded = {index - call.first_choice: choice for index, choice in known.items()}
        call.id = next((choice.completion_id for choice in known.values()), calls[0].id)


def repeat(calls: Sequence[PreparedCompletion]) -> None:
    """Take the replies to a request that its client sends again from the record, where no later call builds on them.

    They were written to a socket, but a client may fail to read one, and nobody did anything after a reply that nobody has.
    """
    call = calls[0]
    if len(calls) > 1 or call.recorded or call.request.top_logprobs:
        return
    turns = call.session.record.turns
    last = next((turn for turn in reversed(turns) if turn.request == call.digest), None)
    if last is None:
        return
    lost = [turn for turn in turns if turn.completion_id == last.completion_id]
    if len(lost) == call.request.choices and not any(turn.parent is one for turn in turns for one in lost):
        call.recorded = {turn.choice_index: recorded_choice(turn) for turn in lost}
        call.id, call.repeated = last.completion_id, True


@dataclass(frozen=True)
class Delta:
    """A piece that a growing reply gained: one of these."""

    reasoning: str = ""
    text: str = ""
    begun_call: Json | None = None
    """A tool call that begins, or that gains a piece of its arguments; it is without them."""
    arguments: str = ""
    """That piece."""
    tool_call: Json | None = None
    """The call that had begun, as a whole."""


Emit = Callable[[Delta], Awaitable[None]]
