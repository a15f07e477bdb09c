"""One session an episode: its key, its token record, and which recorded call a new request continues.

Sessions       those that are open, found by their keys
Session        the record, the history and the key of an episode, which all its roles share
SessionRole    a session as one of its roles asks it: whoever holds the key `KEY.NAME`, or the key alone (the role "")
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import anyio
from opentelemetry.context import Context, get_current

from agentrl.config.trainer import MAX_ROLE_CHARACTERS, is_role
from agentrl.errors import EpisodeError, TooManySessionsError
from agentrl.proxy.chat_format import ChatFormat, Message, Tool
from agentrl.proxy.errors import OUTGROWN, ApiError
from agentrl.proxy.limits import ProxyLimits
from agentrl.proxy.prefill import with_prefill
from agentrl.proxy.prefixes import MessageNode, PrefixIndex
from agentrl.record.recorded_choice import CallLog
from agentrl.record.rolling_digest import RollingDigest, bytes_of_ids, bytes_of_text
from agentrl.record.tokens import ImageSpan
from agentrl.record.trajectory import TokenRecord, Turn

log = logging.getLogger(__name__)
_silent_roles: set[str] = set()
"""Those that this process has warned of."""
REMEMBERED_CLOSED_SESSIONS = 100_000
"""Keys of ended sessions that are still told apart from unknown ones (409 instead of 401)."""


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
    conversation: MessageNode | None = None
    """Its messages; None: a raw prompt."""
    text: RollingDigest | None = None
    """The digest of a raw prompt's text; None: it is ids, or a conversation."""
    images: tuple[ImageSpan, ...] = ()
    """The images whose tokens are in `input_ids`, in order."""
    forced_ids: Sequence[int] = ()
    """The end of `input_ids`, which the model is taken to have said: a prefill, and what makes it call a tool."""
    prefill: str = ""
    """The text that the client wrote as the beginning of the reply; `agentrl.proxy.prefill`."""

    def with_forced(self, ids: list[int]) -> Prompt:
        """Return the prompt with ids after it that the model is taken to have said."""
        return replace(self, input_ids=self.input_ids + ids, digest=self.digest.with_ids(ids), forced_ids=ids)

    @property
    def asked_ids(self) -> list[int]:
        """The ids up to where the model speaks."""
        return self.input_ids[: len(self.input_ids) - len(self.forced_ids)]


@dataclass(frozen=True)
class History:
    """A conversation that its client does not send again. Those that go on from each other share their messages."""

    messages: Sequence[Message]
    tools: list[Tool] | None = None
    """Its tools: a thread of Anthropic's goes on with those that it began with."""


@dataclass(eq=False)
class SessionRole:
    """A session as one of its roles asks it: the same record and history, and calls that carry the role's name."""

    session: Session
    name: str = ""
    trained: bool = True
    """Whether the role's calls are trained on."""

    @property
    def adapter(self) -> str:
        """The role whose LoRA adapter answers it; "": the weights that are served."""
        return self.name if self.session.adapters else ""


@dataclass(eq=False)
class Session:
    """The model calls of one episode, those of all its roles. Its key is the api key that the agent uses."""

    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    key: str = field(default_factory=lambda: f"sk-agentrl-{secrets.token_urlsafe(24)}", repr=False)
    record: TokenRecord = field(default_factory=TokenRecord)
    closed: bool = False
    histories: dict[str, History] = field(default_factory=dict)
    """Id of a response, or of a message of a thread of Anthropic's -> the conversation up to and including it."""
    responses: dict[str, Message] = field(default_factory=dict)
    """For the Responses API: id of a response that its client had stored -> the response."""
    items: dict[str, Message] = field(default_factory=dict)
    """For the Responses API: id of an item of a stored response -> the item."""
    trace: Context = field(default_factory=get_current, repr=False)
    """The trace of its episode, to which calls belong that name no other."""
    requests: int = 0
    """Requests being answered, of all its roles together."""
    last_used: float = field(default_factory=time.monotonic, repr=False)
    outgrown: bool = False
    """Whether a prompt was refused since it is longer than the context."""
    role_rewards: dict[str, float] = field(default_factory=dict)
    call_log: CallLog | None = None
    """Where the calls are kept as they happen; None: nowhere, but in the record."""
    adapters: tuple[str, ...] = ()
    """The roles that have LoRA adapters of their own: there are no others. (): one policy answers every role."""
    _roles: dict[str, SessionRole] = field(init=False, repr=False)
    """The roles that were asked for, by their names; "": none of them."""
    _messages: MessageNode = field(default_factory=MessageNode)
    """All conversations: the first message of each stands for its tools and the options of the template."""
    _texts: PrefixIndex = field(default_factory=PrefixIndex)
    """Texts of raw prompts, with their replies."""
    _ids: PrefixIndex = field(default_factory=PrefixIndex)
    """Ids of all prompts, with their replies."""

    def __post_init__(self) -> None:
        self._roles = {"": SessionRole(self)}

    def prompt(self, chat_format: ChatFormat, messages: Sequence[Message], tools: list[Tool] | None) -> Prompt:
        """Return the prompt of a conversation. Where it extends a recorded call, that call's ids are kept as they are.

        A renderer goes on from the last reply in it. Where it cannot, as no chat template can, the whole is rendered, and extends the
        call whose ids it begins with.
        """
        begun = {"role": "", "tools": tools, "options": chat_format.template_options}
        end = next((end for end in range(len(messages), 0, -1) if messages[end - 1]["role"] == "assistant"), 0)
        replied = self._messages.after([begun, *messages[:end]])
        conversation, turn = replied.after(messages[end:]), replied.turn
        if turn is not None and not chat_format.is_template:
            path = turn.token_ids()
            split = len(path) - len(turn.output_ids)
            if (extended := chat_format.extend(path[:split], path[split:], messages[end:], tools)) is not None:
                return Prompt(
                    input_ids=extended.ids,
                    parent=turn,
                    digest=turn.path_digest().with_ids(extended.ids[turn.length :]),
                    conversation=conversation,
                    images=(*turn.path_images(), *extended.images),
                )
        whole = chat_format.render(messages, tools)
        known = self._ids.longest(bytes_of_ids(whole.ids))
        parent = None if whole.images else known.turn  # ids do not tell one image from another
        return Prompt(
            input_ids=whole.ids, parent=parent, digest=known.digest, conversation=conversation, images=whole.images
        )

    def raw_prompt(self, chat_format: ChatFormat, raw: str | list[int]) -> Prompt:
        """Return the prompt of text or ids that are to be gone on from. What extends a recorded call keeps that call's ids."""
        if isinstance(raw, list):
            known = self._ids.longest(bytes_of_ids(raw))
            return Prompt(input_ids=raw, parent=known.turn, digest=known.digest)
        content = bytes_of_text(raw)
        known = self._texts.longest(content)
        rest = content[known.length :].decode(errors="surrogatepass")
        new = chat_format.tokenizer.encode(rest, add_special_tokens=False)
        past, digest = (known.turn.token_ids(), known.turn.path_digest()) if known.turn else ([], RollingDigest())
        return Prompt(input_ids=past + new, parent=known.turn, digest=digest.with_ids(new), text=known.digest)

    def remember(self, prompt: Prompt, reply: Message, turn: Turn) -> None:
        """Let requests go on from `turn`, which is recorded and answers `prompt` with `reply`."""
        self._ids.add(turn.path_digest(), turn)
        if prompt.text is not None:
            self._texts.add(prompt.text.with_text(reply["content"]), turn)
        if prompt.conversation is not None:
            prompt.conversation.after([with_prefill(prompt.prefill, reply)]).end_with(turn)
            if prompt.prefill:  # clients may also send it back as a message of its own
                begun = {"role": "assistant", "content": prompt.prefill}
                prompt.conversation.after([begun, reply]).end_with(turn)

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
            EpisodeError: the name is no word, or that of no role that has an adapter where others have.
        """
        if name not in self._roles:
            if not is_role(name):
                shown = repr(name[: MAX_ROLE_CHARACTERS + 1])
                raise EpisodeError(f"{shown} is no word of at most {MAX_ROLE_CHARACTERS} letters, digits, - and _")
            if self.adapters and name not in self.adapters:
                raise EpisodeError(f"{name!r} is none of {self.known_roles()}; name it there too")
            self._roles[name] = SessionRole(self, name)
        return self._roles[name]

    def known_roles(self) -> str:
        """Say which roles there are, where these have adapters of their own."""
        return f"`trainer.lora.roles`: {', '.join(self.adapters)}"

    def has_outgrown(self, error: BaseException) -> bool:
        """Return whether an error is the refusal of a prompt that has outgrown the context: its message holds the code, whichever client raises it.

        A first prompt that is too long is a fault of the workflow's.
        """
        return self.outgrown and bool(self.record.turns) and OUTGROWN in str(error)

    def warn_of_silent_roles(self) -> None:
        """Warn of each role that has a reward and made no model call, once a process."""
        spoke = {turn.role for turn in self.record.turns}
        for name in self.role_rewards.keys() - spoke - _silent_roles:
            _silent_roles.add(name)
            log.warning(
                "the role %(role)r was rewarded in an episode in which it made no model call, so that the reward counts for nothing: "
                "ask the model as that role, by `episode.role(%(role)r).client` or with the key KEY.%(role)s",
                {"role": name},
            )

    def end(self) -> None:
        """Answer no more, and record no more."""
        self.closed = True
        self.record.reward_roles(self.role_rewards)


class Sessions:
    """Open sessions. `on_close` is called with each that ends, `adapters` are the roles that have adapters of their own."""

    def __init__(
        self, limits: ProxyLimits, on_close: Callable[[Session], None], adapters: tuple[str, ...] = ()
    ) -> None:
        self._limits = limits
        self._adapters = adapters
        self._on_close = on_close
        self._open: dict[str, Session] = {}
        self._closed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def open(self, defaults: SamplingDefaults | None = None, call_log: CallLog | None = None) -> Session:
        """Return a session with a key of its own, whose calls are kept in `call_log`.

        Raises:
            TooManySessionsError: There are as many as there may be.
        """
        if len(self._open) >= self._limits.max_sessions:
            raise TooManySessionsError(f"{len(self._open)} sessions are open, as many as there may be; close some")
        session = Session(defaults or SamplingDefaults(), call_log=call_log, adapters=self._adapters)
        self._open[session.key] = session
        return session

    def close(self, session: Session) -> None:
        """End a session: its record is final, and its key is answered with 409."""
        session.end()
        self._on_close(session)
        if self._open.pop(session.key, None) is not None:
            self._closed[session.key] = None
            if len(self._closed) > REMEMBERED_CLOSED_SESSIONS:
                del self._closed[next(iter(self._closed))]

    def find(self, key: str) -> SessionRole:
        """Return the open session of a key; `KEY.NAME` is that session as its role NAME.

        Raises:
            ApiError: 401 for an unknown key, 409 for one that has ended, 400 for a role that it cannot have.
        """
        key, _, name = key.partition(".")
        session = self._open.get(key)
        if session is not None:
            session.last_used = time.monotonic()
            try:
                return session.role(name)
            except EpisodeError as error:
                raise ApiError(400, f"The key names a role that cannot be: {error}.", code="invalid_role") from None
        if key in self._closed:
            raise ApiError(409, "The episode of this key has ended.", code="episode_closed")
        message = "Incorrect API key provided: it names no open session; `episode.api_key` does, and with `agentrl serve` the key that POST /sessions returns (the admin key is for /sessions)."
        raise ApiError(401, message, code="invalid_api_key")

    async def close_idle(self) -> None:
        """Close sessions that idle for too long; runs until it is cancelled."""
        timeout_s = self._limits.session_idle_timeout_s
        while timeout_s is not None:
            await anyio.sleep(min(timeout_s / 4, 60))
            latest = time.monotonic() - timeout_s
            for session in self:
                if not session.requests and session.last_used < latest:
                    self.close(session)
