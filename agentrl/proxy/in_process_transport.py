"""The second way to the proxy: clients in this process hand it their requests without a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping

import httpx2

from agentrl.proxy.http_messages import Response


class InProcessTransport(httpx2.AsyncBaseTransport):
    """Hands the requests of an httpx2 client to `handle`, and streams what comes back."""

    def __init__(self, handle: Callable[[str, str, Mapping[str, str], bytes], Awaitable[Response]]) -> None:
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
