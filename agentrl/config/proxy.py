"""The section `proxy`: the address that it listens on, and the limits that it holds every request to before it works on it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agentrl.config.role_names import is_role
from agentrl.config.section import Positive, Seconds, Section

ROLE_PREFIX = "role:"
"""What stands before the name of a role in `model_names`."""


def _checked(meaning: str) -> str:
    is_model = bool(meaning) and not meaning.startswith(ROLE_PREFIX)
    if not is_model and not is_role(meaning.removeprefix(ROLE_PREFIX)):
        raise ValueError(
            f"{meaning!r} is neither the name of the served model nor role:NAME, of a word of at most 64 letters, digits, - and _"
        )
    return meaning


_Meaning = Annotated[str, AfterValidator(_checked)]
ControlTokens = Literal["text", "tokens"]


class ProxyLimits(Section):
    """The limits of requests and sessions."""

    max_request_bytes: Positive = 32 * 2**20
    """A larger request is refused with 413."""
    max_sessions: Positive = 100_000
    """Sessions open at the same time."""
    max_requests_per_session: Positive = 4096
    """Requests of one session in work at the same time; 429 beyond."""
    threads: Positive = 2
    """Threads for requests and replies that take long to read, render or write."""
    model_names: dict[str, _Meaning] | None = None
    """The names of models that are answered, each with what it stands for: the served model's name, or `role:NAME` for the served model
    in a role of the session. A `*` at a name's end stands for anything; the longest that fits counts. Other names are refused with 404.
    Default: any name is answered."""
    session_idle_timeout_s: Seconds | None = None
    """A session that no request came for is closed after this. Default: an hour for `agentrl serve`; an episode's session
    lives as long as the episode."""
    body_timeout_s: Seconds = 60
    """Bound of receiving a request's body."""
    write_timeout_s: Seconds = 60
    """A client that does not take an event, or the whole of a reply that is not streamed, within this is given up."""


class ProxyConfig(ProxyLimits):
    """The server that agents talk to."""

    host: str = "127.0.0.1"
    """Address to listen on. Anyone who reaches it and has a session's key can use the model."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0: a free one. With `rollout.workers`, whose proxies are on free ones, it is that of `/metrics` alone, and 0: none."""
    control_tokens_in_text: ControlTokens = "text"
    """Text such as `<|im_end|>` in a system, user or tool message: "text" encodes it as ordinary characters, "tokens" makes it the control
    token, as transformers does."""
