"""Requests and replies of HTTP: the headers that hold a key or say that a request is sent again, and the form of a reply.

authorization: Bearer KEY, x-api-key, x-goog-api-key, ?key=   the key, as the clients of OpenAI, Anthropic and Google send it
x-stainless-retry-count                                       above 0 in what the clients of OpenAI and Anthropic send again: neither sends an idempotency key
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs

from agentrl.proxy.json_text import to_json

Framing = Literal["named", "done", "plain", "array"]
"""How events are written: server-sent, each with its name, or with `[DONE]` at the end, or without either; or as one JSON array."""


@dataclass
class Response:
    """An HTTP reply: `body`, or server-sent events as they come."""

    body: bytes = b""
    status: int = 200
    events: AsyncGenerator[bytes, None] | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)
    framing: Framing = "done"

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""
        is_json = self.events is None or self.framing == "array"
        kind = "application/json" if is_json else "text/event-stream; charset=utf-8"
        return {"Content-Type": kind, **self.extra_headers}


def json_response(content: dict[str, Any]) -> Response:
    """Return content as a reply."""
    return Response(to_json(content))


def framed(framing: Framing, event: dict[str, Any], content: bytes, index: int) -> bytes:
    """Return one event as it is sent.

    Args:
        framing: how events are written.
        event: the event.
        content: its JSON.
        index: how many were sent before it.
    """
    if framing == "array":
        return (b",\n" if index else b"[") + content
    name = f"event: {event['type']}\n".encode() if framing == "named" and "type" in event else b""
    return name + b"data: " + content + b"\n\n"


def closing(framing: Framing, count: int) -> bytes:
    """Return what ends a stream of `count` events."""
    ends: dict[Framing, bytes] = {"done": b"data: [DONE]\n\n", "array": b"]" if count else b"[]"}
    return ends.get(framing, b"")


def request_key(headers: Mapping[str, str], query: str) -> str:
    """Return the key of a request; empty where there is none."""
    key = headers.get("x-api-key") or headers.get("x-goog-api-key") or _bearer_key(headers)
    return key or next(iter(parse_qs(query).get("key", [])), "")


def has_bearer_key(headers: Mapping[str, str], key: str) -> bool:
    """Return whether a request brings this key, compared in a time that tells nothing of it."""
    # Headers may hold any bytes: those that are not UTF-8 arrive as lone surrogates.
    return hmac.compare_digest(_bearer_key(headers).encode(errors="surrogatepass"), key.encode())


def _bearer_key(headers: Mapping[str, str]) -> str:
    return headers.get("authorization", "").removeprefix("Bearer ").strip()


def is_retry(headers: Mapping[str, str]) -> bool:
    """Return whether a client says that it sends the request again."""
    return headers.get("x-stainless-retry-count", "0") != "0"
