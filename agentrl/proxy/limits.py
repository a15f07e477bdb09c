"""The limits of a request, each checked before the work that it bounds.

bytes of the body (`server.py`) ─► nesting of its JSON (`http_messages.py`) ─► replies, least tokens ─► rendered ─► tokens of the prompt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.proxy.chat_format import Message
from agentrl.proxy.errors import OUTGROWN, ApiError, invalid

if TYPE_CHECKING:
    from agentrl.proxy.session import Session


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """The limits of requests and sessions."""

    max_request_bytes: int = 32 * 2**20
    """A larger request is refused with 413."""
    max_sessions: int = 100_000
    """Sessions open at the same time."""
    threads: int = 2
    """Threads for requests and replies that take long to read, render or write."""
    body_timeout_s: float = 60
    """Bound of receiving a request's body."""
    write_timeout_s: float = 60
    """A client that does not take an event, or the whole of a reply that is not streamed, within this is given up."""
    session_idle_timeout_s: float | None = None
    """A session that no request came for is closed after this; None: never."""


MAX_CHOICES = 1024
"""Replies to one request: its prompts times `n`."""


def too_large(limits: ProxyLimits) -> ApiError:
    """Return the refusal of a body beyond the limit."""
    message = f"The request is larger than {limits.max_request_bytes} bytes."
    return ApiError(413, message, code="request_too_large")


def check_choices(count: int) -> None:
    """Check that a request asks for no more replies than `MAX_CHOICES`.

    Raises:
        ApiError: 400: it does.
    """
    if count > MAX_CHOICES:
        raise invalid("n", f"{count} replies are more than the {MAX_CHOICES} of one request")


def least_tokens(raw: str | None, messages: Sequence[Message], longest_token: int) -> int:
    """Return fewer tokens than a tokenizer whose longest token has `longest_token` bytes makes of a raw prompt, or of a conversation's texts."""
    if raw is not None:
        return len(raw) // longest_token
    size = sum(len(message.get("content") or "") for message in messages)
    # A template writes the role of each message at one token or more.
    return max(size // longest_token, len(messages))


def check_length(session: Session, param: str, tokens: int, context_length: int, *, least: bool = False) -> None:
    """Check that a prompt leaves room for a reply. Where it does not, the session notes that it was outgrown.

    Args:
        session: Whose prompt it is.
        param: The field that holds it.
        tokens: Of the prompt.
        context_length: Of the model, in tokens.
        least: Whether the prompt has `tokens` or more.

    Raises:
        ApiError: 400, with OpenAI's code for it.
    """
    if tokens < context_length:
        return
    session.outgrown = True
    taken = f"at least {tokens}" if least else f"{tokens}"
    message = (
        f"This model's maximum context length is {context_length} tokens, but '{param}' takes {taken} ({OUTGROWN})."
    )
    raise ApiError(400, message, param=param, code=OUTGROWN)
