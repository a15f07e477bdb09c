"""One session an episode: its key, its token record, and which recorded call a new request continues.

Session        the record, the history and the key of an episode, which all its roles share
SessionRole    a session as one of its roles asks it: whoever holds the key `KEY.NAME`, or the key alone (the role "")
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio
from opentelemetry.context import Context, get_current

from agentrl.config.role_names import MAX_ROLE_CHARACTERS, is_role
from agentrl.errors import EpisodeError
from agentrl.proxy.bounds import check_depth
from agentrl.proxy.chat_format import ChatFormat, Message, Rendered, Tool
from agentrl.proxy.fingerprints import Fingerprints
from agentrl.proxy.longest_prefix import Recorded
from agentrl.proxy.prefill import joined
from agentrl.proxy.tries import Tries
from agentrl.record.recorded_choice import CallLog
from agentrl.record.rolling_digest import RollingDigest, bytes_of_ids, bytes_of_text
from agentrl.record.tokens import Generation, ImageSpan
from agentrl.record.trajectory import TokenRecord, Turn


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """The sampling of requests that leave it open."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    """Bound of one reply; None: what the context leaves."""
    is_bound: bool = False
    """Whether no request may ask for more than `max_tokens`."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The prompt that the engine is sent for one request."""

    input_ids: list[int]
    parent: Turn | None
    """The recorded call that the request continues; None: a new branch."""
    digest: RollingDigest
    """The digest of `input_ids`, which goes on from that of the parent's path."""
    history: bytes = b""
    """Fingerprint of tools and messages; empty for a raw prompt."""
    text: RollingDigest = field(default_factory=RollingDigest)
    """The digest of the text of a raw prompt."""
    images: tuple[ImageSpan, ...] = ()
    """The images whose tokens are in `input_ids`, in order."""
    prefill: str = ""
    """The beginning of the reply that the client wrote, and `input_ids` end with; `agentrl.proxy.prefill`."""

    def followed_by(self, ids: list[int]) -> Prompt:
        """Return the prompt with ids after it."""
        if not ids:
            return self
        return replace(self, input_ids=self.input_ids + ids, digest=self.digest.with_ids(ids))


@dataclass(frozen=True)
class Conversation:
    """The part that a response added to the conversation that it went on from, which is stored once."""

    before: Conversation | None
    added: list[Message]
    tools: list[Tool] | None = None
    """The tools of a thread of Anthropic's, which goes on with those that it began with."""

    def messages(self) -> list[Message]:
        """Return all of it."""
        parts: list[list[Message]] = []
        part: Conversation | None = self
        while part is not None:
            parts.append(part.added)
            part = part.before
        return [message for added in reversed(parts) for message in added]


@dataclass
class Activity:
    """The activity of a session, with all its roles together."""

    requests: int = 0
    """Requests being answered."""
    last_used: float = field(default_factory=time.monotonic)
    generations: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(64, fast_acquire=True))
    """Held while the engine works on a reply."""
    heavy_work: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a thread reads, renders or writes for it."""


@dataclass(eq=False)
class SessionRole:
    """A session as one of its roles asks it: the same record and history, and calls that carry the role's name."""

    session: Session
    name: str = ""
    trained: bool = True
    """Whether the role's calls are trained on."""

    @property
    def adapter(self) -> str:
        """The role whose LoRA adapter answers it; "": the weights that are served.

        Raises:
            EpisodeError: Roles have adapters of their own, and it has no name.
        """
        if not self.session.adapters:
            return ""
        if not self.name:
            raise EpisodeError(f"the call names no role, and must be one of {self.session.known_roles()}")
        return self.name


@dataclass(eq=False)
class Session:
    """The model calls of one episode, those of all its roles. Its key is the api key that the agent uses."""

    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    key: str = field(default_factory=lambda: f"sk-agentrl-{secrets.token_urlsafe(24)}", repr=False)
    record: TokenRecord = field(default_factory=TokenRecord)
    closed: bool = False
    conversations: dict[str, Conversation] = field(default_factory=dict)
    """Id of a response, or of a message of a thread of Anthropic's -> the conversation up to and including it."""
    responses: dict[str, Message] = field(default_factory=dict)
    """For the Responses API: id of a response that its client had stored -> the response."""
    items: dict[str, Message] = field(default_factory=dict)
    """For the Responses API: id of an item of a stored response -> the item."""
    ignored: set[str] = field(default_factory=set)
    """Names of what clients asked for and did not get, since it changes nothing that is sampled."""
    trace: Context = field(default_factory=get_current, repr=False)
    """The trace of its episode, to which calls belong that name no other."""
    activity: Activity = field(default_factory=lambda: Activity(), repr=False)
    tries: Tries = field(default_factory=Tries, repr=False)
    role_rewards: dict[str, float] = field(default_factory=dict)
    call_log: CallLog | None = None
    """Where the calls are kept as they happen; None: nowhere, but in the record."""
    max_roles: int = 64
    adapters: tuple[str, ...] = ()
    """The roles that have LoRA adapters of their own: there are no others. (): one policy answers every role."""
    longest_prompt: int = 0
    """Tokens of the longest prompt so far: what going on from it costs."""
    _roles: dict[str, SessionRole] = field(default_factory=dict)
    """The roles that were named, by their names."""
    _fingerprints: Fingerprints = field(default_factory=Fingerprints)
    _calls: dict[bytes, Turn] = field(default_factory=dict)
    """Fingerprint of a conversation up to and including a recorded reply -> the turn that made the reply."""
    _texts: Recorded = field(default_factory=Recorded)
    """Texts of raw prompts, with their replies."""
    _ids: Recorded = field(default_factory=Recorded)
    """Ids of all prompts, with their replies."""

    def __post_init__(self) -> None:
        self._nameless = SessionRole(self)

    def prompt(self, chat_format: ChatFormat, messages: Sequence[Message], tools: list[Tool] | None) -> Prompt:
        """Return the prompt of a conversation. Where it extends a recorded call, that call's ids are kept as they are.

        Raises:
            ApiError: What is new in it is nested too deeply.
        """
        fingerprints = self._fingerprints.of(messages, tools, chat_format.template_options)
        history = fingerprints[-1]
        whole = _rendered(chat_format, messages, tools) if chat_format.is_template else None
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            turn = self._calls.get(fingerprints[end - 1])
            if turn is None:
                continue
            path = turn.token_ids()
            split = len(path) - len(turn.output_ids)
            if whole is not None:
                extended = whole if whole.ids[: len(path)] == path else None
            else:
                check_depth(messages[end:])
                extended = chat_format.extend(path[:split], path[split:], messages[end:], tools)
            if extended is not None:
                digest = turn.path_digest().with_ids(extended.ids[turn.length :])
                images = (*turn.path_images(), *extended.images) if chat_format.takes_images else ()
                return Prompt(input_ids=extended.ids, parent=turn, digest=digest, history=history, images=images)
        rendered = whole or _rendered(chat_format, messages, tools)
        digest = RollingDigest().with_ids(rendered.ids)
        return Prompt(input_ids=rendered.ids, parent=None, digest=digest, history=history, images=rendered.images)

    def raw_prompt(self, chat_format: ChatFormat, raw: str | list[int]) -> Prompt:
        """Return the prompt of text or ids that are to be gone on from. What extends a recorded call keeps that call's ids."""
        if isinstance(raw, str):
            content = bytes_of_text(raw)
            known = self._texts.longest(content)
            new = chat_format.tokenizer.encode(
                content[known.length :].decode(errors="surrogatepass"), add_special_tokens=False
            )
            past, digest = (known.turn.token_ids(), known.turn.path_digest()) if known.turn else ([], RollingDigest())
            return Prompt(input_ids=past + new, parent=known.turn, digest=digest.with_ids(new), text=known.digest)
        known = self._ids.longest(bytes_of_ids(raw))
        text = RollingDigest().with_text(chat_format.decode(raw))
        return Prompt(input_ids=raw, parent=known.turn, digest=known.digest, text=text)

    def add(
        self,
        completion_id: str,
        prompt: Prompt,
        generation: Generation,
        temperature: float,
        reply: Message,
        choice_index: int,
        role: SessionRole | None = None,
    ) -> Turn:
        """Record a reply to `prompt`.

        Where choices of one call say the same, it is the first of them, and not that which ended last, that a conversation goes
        on from: so it is the same again when the episode starts over.
        """
        turn = self.record.add(
            completion_id, prompt.parent, prompt.input_ids, generation, temperature, prompt.images, prompt.digest
        )
        asking = role or self._nameless
        turn.role, turn.trained, turn.choice_index = asking.name, asking.trained, choice_index
        turn.adapter = asking.adapter
        self._ids.add(turn.path_digest(), turn)
        if prompt.history:
            for said in self._conversations(prompt, reply):
                known = self._calls.get(said)
                if known is None or known.completion_id != completion_id or choice_index < known.choice_index:
                    self._calls[said] = turn
        else:
            self._texts.add(prompt.text.with_text(reply["content"]), turn)
        return turn

    def _conversations(self, prompt: Prompt, reply: Message) -> list[bytes]:
        """Return the fingerprints of the conversation up to and including a reply: a prefill may be a message of its own in it."""
        self._fingerprints.remember_malformed(reply)
        whole = self._fingerprints.after(prompt.history, joined(prompt.prefill, reply))
        if not prompt.prefill:
            return [whole]
        begun = self._fingerprints.after(prompt.history, {"role": "assistant", "content": prompt.prefill})
        return [whole, self._fingerprints.after(begun, reply)]

    def reward(self, completion_id: str, value: float) -> None:
        """Give one model call a reward of its own.

        Raises:
            KeyError: This session never answered that id.
        """
        for turn in self.turns_of(completion_id):
            turn.reward = value

    def turns_of(self, completion_id: str) -> list[Turn]:
        """Return the choices of one model call.

        Raises:
            KeyError: This session never answered that id.
        """
        turns = [turn for turn in self.record.turns if turn.completion_id == completion_id]
        if not turns:
            raise KeyError(completion_id)
        return turns

    def role(self, name: str) -> SessionRole:
        """Return this session as one of its roles, which is made when it is first asked for.

        Raises:
            EpisodeError: the name is no word, or that of no role that has an adapter where others have, or the session has as many roles
                as it may have.
        """
        if not name:
            return self._nameless
        if name not in self._roles:
            if not is_role(name):
                shown = repr(name[: MAX_ROLE_CHARACTERS + 1])
                raise EpisodeError(f"{shown} is no word of at most {MAX_ROLE_CHARACTERS} letters, digits, - and _")
            if self.adapters and name not in self.adapters:
                raise EpisodeError(f"{name!r} is none of {self.known_roles()}; name it there too")
            if len(self._roles) >= self.max_roles:
                raise EpisodeError(f"{name!r} would be one role more than `proxy.max_roles` = {self.max_roles} allows")
            self._roles[name] = SessionRole(self, name)
        return self._roles[name]

    def known_roles(self) -> str:
        """Say which roles there are, where these have adapters of their own."""
        return f"`trainer.lora.roles`: {', '.join(self.adapters)}"

    def end(self) -> None:
        """Answer no more, and record no more."""
        self.closed = True
        self.record.reward_roles(self.role_rewards)


def _rendered(chat_format: ChatFormat, messages: Sequence[Message], tools: list[Tool] | None) -> Rendered:
    check_depth(messages)
    return chat_format.render(messages, tools)
