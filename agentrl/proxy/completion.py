"""The shapes of one completion, of any dialect.

CompletionRequest ─► PreparedCompletion (its prompt, and the Sampling that the engine is sent) ─► Completion
                                                                         └─ as it grows: Deltas
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.engine.protocol import Sampling
from agentrl.proxy.chat_format import AssistantMessage, ChatFormat, Message, Tool
from agentrl.proxy.errors import ApiError
from agentrl.proxy.session import History, Prompt, Session, SessionRole
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation

Json = dict[str, Any]
OBJECT_SCHEMA = '{"type":"object"}'
"""The schema of `response_format: json_object`."""
ALTERING = ("top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")
"""The fields of `Sampling` that nothing but a request sets, and that make tokens be drawn from another distribution."""


@dataclass(frozen=True)
class NamedTool:
    """The model must call this tool."""

    name: str


def alterations_of(sampling: Sampling) -> Json:
    """Return what makes the tokens of a reply no samples of softmax(logits / temperature), by name; empty where they are.

    A temperature above 0 is no alteration, whatever it is: it is recorded with the turn, and the trainer's logprobs are taken at it.
    """
    neutral, asked = vars(Sampling(max_new_tokens=0)), vars(sampling)
    names = ["temperature" if sampling.temperature == 0 else "top_p", *ALTERING]
    found = {name: asked[name] for name in names if asked[name] != neutral[name]}
    if sampling.logit_bias:
        found["logit_bias"] = [list(pair) for pair in sampling.logit_bias]
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
    alterations: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `Sampling` that are `ALTERING`, by name; those that are absent are neutral."""
    choices: int = 1
    """Replies that are asked for."""
    logprobs: bool = False
    """Whether they are to come with their logprobs."""
    top_logprobs: int = 0
    json_schema: str | None = None
    """JSON of the schema that the reply must satisfy."""
    ignored: Sequence[str] = ()
    """Names of what the client asked for and does not get, since it changes nothing that is sampled."""

    @property
    def shown_tools(self) -> list[Tool] | None:
        """The tools that the model is shown; None: none."""
        return None if self.tool_choice == "none" else self.tools or None

    @property
    def prompt_field(self) -> str:
        """The field that holds the prompt."""
        return "messages" if self.raw is None else "prompt"

    @property
    def named_tool(self) -> str | None:
        """The tool that must be called; None: whichever."""
        return self.tool_choice.name if isinstance(self.tool_choice, NamedTool) else None

    @property
    def images(self) -> list[str]:
        """The URLs of the images in the messages."""
        contents = [message.get("content") for message in self.messages]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


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


@dataclass(kw_only=True)
class PreparedCompletion:
    """A completion request on its way: what is sent to the engine, and how its replies are read."""

    id: str
    role: SessionRole
    """The role that asks."""
    request: CompletionRequest
    prompt: Prompt
    sampling: Sampling
    chat_format: ChatFormat
    """The chat format that its replies are read with, with the request's options of the template."""
    digest: str
    """A digest that tells the request from others; `agentrl.proxy.call_log`."""
    first_choice: int = 0
    """Index of its first reply among those of the request: one of several prompts comes after the replies of those before it."""
    recorded: dict[int, RecordedChoice] = field(default_factory=dict)
    """Replies that are known from before, by choice."""
    repeated: bool = False
    """Whether those are in the record already, as its client did not get them."""
    made: dict[int, Completion] = field(default_factory=dict)
    """Its replies that are whole and kept, by choice."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def session(self) -> Session:
        """The session of the role that asks."""
        return self.role.session

    def keep_history(self, reply: Completion, *, begin: int = 0) -> None:
        """Let later requests go on from its reply by its id, without the messages before number `begin`."""
        messages = [*self.request.messages[begin:], reply.message.to_json()]
        self.session.histories[self.id] = History(messages, self.request.tools)

    def check_open(self) -> None:
        """Check that its reply can still be recorded.

        Raises:
            ApiError: the episode has ended.
        """
        if self.session.closed:
            raise ApiError(409, "The episode of this key ended while the reply was being made.", code="episode_closed")


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
