"""One session an episode: its key, its token record, and which recorded call a new request continues."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio
import pydantic_core

from agentrl.errors import EpisodeError
from agentrl.proxy.call_log import CallLog
from agentrl.proxy.chat_format import ChatFormat, Message, Tool
from agentrl.proxy.json_text import read_json
from agentrl.proxy.longest_prefix import Recorded, bytes_of_ids, bytes_of_text
from agentrl.record.tokens import Generation, ImageSpan
from agentrl.record.trajectory import TokenRecord, Turn

MAX_ROLE_CHARACTERS = 64


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """What a request that does not say gets."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    """Bound of one reply; None: what the context leaves."""


@dataclass(frozen=True)
class Prompt:
    """What the engine is sent for one request."""

    input_ids: list[int]
    parent: Turn | None
    """The recorded call that the request continues; None: a new branch."""
    history: bytes
    """Fingerprint of tools and messages."""
    text: str = ""
    """Of a raw prompt, its text."""
    images: tuple[ImageSpan, ...] = ()
    """Those whose tokens are in `input_ids`, in order."""


@dataclass(frozen=True)
class Conversation:
    """What a response added to the conversation that it went on from, which is stored once."""

    before: Conversation | None
    added: list[Message]

    def messages(self) -> list[Message]:
        """All of it."""
        parts: list[list[Message]] = []
        part: Conversation | None = self
        while part is not None:
            parts.append(part.added)
            part = part.before
        return [message for added in reversed(parts) for message in added]


@dataclass
class Activity:
    """What a session does, those of all its roles together."""

    requests: int = 0
    """Requests being answered."""
    last_used: float = field(default_factory=time.monotonic)
    generations: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(64, fast_acquire=True))
    """Held while the engine works on a reply."""


@dataclass(eq=False)
class Session:
    """The model calls of one episode. Its key is the api key that the agent uses."""

    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    key: str = field(default_factory=lambda: f"sk-agentrl-{secrets.token_urlsafe(24)}", repr=False)
    record: TokenRecord = field(default_factory=TokenRecord)
    closed: bool = False
    conversations: dict[str, Conversation] = field(default_factory=dict)
    """For the Responses API: id of a response -> the conversation up to and including it."""
    activity: Activity = field(default_factory=lambda: Activity(), repr=False)
    roles: dict[str, Session] = field(default_factory=dict)
    """The same session as its roles see it, by their names."""
    role_rewards: dict[str, float] = field(default_factory=dict)
    name: str = ""
    """The role."""
    trained: bool = True
    """Whether the role's calls are trained on."""
    call_log: CallLog | None = None
    """Where the calls are kept as they happen; None: nowhere, but in the record."""
    max_roles: int = 64
    longest_prompt: int = 0
    """Tokens of the longest prompt so far: what going on from it costs."""
    _calls: dict[bytes, Turn] = field(default_factory=dict)
    """Conversation up to and including a recorded reply -> the turn that made the reply."""
    _texts: Recorded = field(default_factory=Recorded)
    """Texts of raw prompts, with their replies."""
    _ids: Recorded = field(default_factory=Recorded)
    """Ids of all prompts, with their replies."""

    def prompt(self, chat_format: ChatFormat, messages: Sequence[Message], tools: list[Tool] | None) -> Prompt:
        """The prompt of a conversation. Where it extends a recorded call, that call's ids are kept as they are."""
        fingerprints = _fingerprints(messages, tools)
        history = fingerprints[-1]
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            turn = self._calls.get(fingerprints[end - 1])
            if turn is None:
                continue
            path = turn.token_ids()
            split = len(path) - len(turn.output_ids)
            extended = chat_format.extend(path[:split], path[split:], messages[end:], tools)
            if extended is not None:
                return Prompt(extended.ids, turn, history, images=(*turn.path_images(), *extended.images))
        rendered = chat_format.render(messages, tools)
        return Prompt(rendered.ids, None, history, images=rendered.images)

    def raw_prompt(self, chat_format: ChatFormat, raw: str | list[int]) -> Prompt:
        """The prompt of text or ids that are to be gone on from. What extends a recorded call keeps that call's ids."""
        if isinstance(raw, str):
            content = bytes_of_text(raw)
            length, parent = self._texts.longest(content)
            past = parent.token_ids() if parent else []
            new = content[length:].decode(errors="surrogatepass")
            ids = past + chat_format.tokenizer.encode(new, add_special_tokens=False)
            return Prompt(ids, parent, b"", raw)
        _, parent = self._ids.longest(bytes_of_ids(raw))
        return Prompt(raw, parent, b"", chat_format.decode(raw))

    def add(
        self,
        completion_id: str,
        prompt: Prompt,
        generation: Generation,
        temperature: float,
        reply: Message,
        choice_index: int,
    ) -> Turn:
        """Record a reply to `prompt`. Where choices of one call say the same, it is the first of them, and not that which ended
        last, that a conversation goes on from: so it is the same again when the episode starts over."""
        turn = self.record.add(completion_id, prompt.parent, prompt.input_ids, generation, temperature, prompt.images)
        turn.role, turn.trained, turn.choice_index = self.name, self.trained, choice_index
        self._ids.add(bytes_of_ids(prompt.input_ids + generation.output_ids), turn)
        if prompt.history:
            said = _digest(prompt.history, reply)
            known = self._calls.get(said)
            if known is None or known.completion_id != completion_id or choice_index < known.choice_index:
                self._calls[said] = turn
        else:
            self._texts.add(bytes_of_text(prompt.text + reply["content"]), turn)
        return turn

    def reward(self, completion_id: str, value: float) -> None:
        """Give one model call a reward of its own. Raises KeyError for an id that this session never answered."""
        for turn in self.turns_of(completion_id):
            turn.reward = value

    def turns_of(self, completion_id: str) -> list[Turn]:
        """The choices of one model call. Raises KeyError for an id that this session never answered."""
        turns = [turn for turn in self.record.turns if turn.completion_id == completion_id]
        if not turns:
            raise KeyError(completion_id)
        return turns

    def role(self, name: str) -> Session:
        """This session as one of its roles: the same record and history, and calls that carry the role's name.

        Raises EpisodeError for a name that is no word, and for more roles than the session may have.
        """
        if not name:
            return self
        if name not in self.roles:
            if len(name) > MAX_ROLE_CHARACTERS or not name.replace("-", "_").isidentifier():
                shown = repr(name[: MAX_ROLE_CHARACTERS + 1])
                raise EpisodeError(f"{shown} is no word of at most {MAX_ROLE_CHARACTERS} letters, digits, - and _")
            if len(self.roles) >= self.max_roles:
                raise EpisodeError(f"{name!r} would be one role more than proxy.max_roles = {self.max_roles} allows")
            self.roles[name] = replace(self, name=name)
        return self.roles[name]

    def end(self) -> None:
        """Answer no more, and record no more."""
        for session in (self, *self.roles.values()):
            session.closed = True
        self.record.reward_roles(self.role_rewards)


def _fingerprints(messages: Sequence[Message], tools: list[Tool] | None) -> list[bytes]:
    """One digest a message, each of the tools and all messages up to and including it."""
    digest = hashlib.blake2b(pydantic_core.to_json(tools or []), digest_size=16).digest()
    digests = []
    for message in messages:
        digest = _digest(digest, message)
        digests.append(digest)
    return digests


def _digest(before: bytes, message: Message) -> bytes:
    """Chain one message onto a digest. Only what a message means counts, not how a client or a dialect spells it: null
    fields, an empty text, reasoning that the client dropped, one text part instead of a string, spaces in JSON."""
    content = message.get("content") or ""
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        content = "".join(part["text"] for part in content)
    calls = [
        (call.get("id"), call["function"]["name"], _canonical(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    meaning = (message["role"], content, calls, message.get("tool_call_id"), message.get("name"))
    return hashlib.blake2b(before + pydantic_core.to_json(meaning), digest_size=16).digest()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(read_json(arguments), sort_keys=True)
    except ValueError:
        return arguments
