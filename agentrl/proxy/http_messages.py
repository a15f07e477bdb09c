"""Requests and replies of HTTP: the headers that hold a key or say that a request is sent again, the form of a reply, JSON, and clients in this process.

authorization: Bearer KEY, x-api-key, x-goog-api-key, ?key=   the key, as the clients of OpenAI, Anthropic and Google send it
x-stainless-retry-count                                       above 0 in what the clients of OpenAI and Anthropic send again: neither sends an idempotency key

JSON from outside is read so that it raises only errors that are expected. Python's own reader takes NaN, lone surrogates and any depth,
each of which fails later and elsewhere: in the tokenizer, in a client, on the stack.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx2
import jiter
import pydantic_core

Body = bytes | Callable[[], Awaitable[bytes]]
"""A request's body, or how to receive it. Raises ApiError."""


@dataclass
class Response:
    """An HTTP reply: `body`, or server-sent events as they come."""

    body: bytes = b""
    status: int = 200
    events: AsyncGenerator[bytes, None] | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""
        return {"Content-Type": "application/json", **self.extra_headers}


Handle = Callable[[str, str, Mapping[str, str], Body], Awaitable[Response]]
"""Answers a request: its method, its path with its query, its headers, its body."""


def json_response(content: dict[str, Any]) -> Response:
    """Return content as a reply."""
    return Response(to_json(content))


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


class InProcessTransport(httpx2.AsyncBaseTransport):
    """Hand the requests of a client in this process to `handle`, without a socket."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer one request of the client."""
        query = request.url.query.decode()
        target = f"{request.url.path}?{query}" if query else request.url.path
        reply = await self._handle(request.method, target, request.headers, await request.aread())
        if reply.events is None:
            return httpx2.Response(reply.status, headers=reply.headers, content=reply.body)
        return httpx2.Response(reply.status, headers=reply.headers, stream=_EventStream(reply.events))


class _EventStream(httpx2.AsyncByteStream):
    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            yield event

    async def aclose(self) -> None:
        await self._events.aclose()


def read_json(text: str | bytes) -> Any:
    """Read JSON.

    Raises:
        ValueError: It is anything else: also NaN, a repeated key, a lone surrogate, bytes that are no UTF-8, more than 4,300
            digits, and more than 200 levels, which is far below Python's limit of recursion, whatever walks a value after it.
    """
    data = text.encode() if isinstance(text, str) else text
    return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)


def to_json(value: Any) -> bytes:
    """Write JSON. What JSON has no number for is null."""
    return pydantic_core.to_json(value, inf_nan_mode="null")


def strict_json(value: Any) -> bytes:
    """Write JSON that every reader takes: what it has no number for is null, and half of a surrogate pair is replaced."""
    try:
        return to_json(value)
    except ValueError:
        return to_json(json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace")))
