"""The proxy on a socket: aiohttp's own server with one handler for every path.

head ─► key checked ─► body (`max_request_bytes`, `body_timeout_s`) ─► Proxy.handle ─► reply, piece by piece (`write_timeout_s`)

A client that disconnects cancels the handler, and with it what the engine generates for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

import anyio
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agentrl.engine.protocol import Engine
from agentrl.proxy.app import Proxy
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.errors import ApiError
from agentrl.proxy.http_messages import Handle
from agentrl.proxy.limits import ProxyLimits, too_large

log = logging.getLogger(__name__)
# aiohttp logs heads that it cannot read, and they hold keys.
_unheard = logging.Logger("aiohttp.server")
_unheard.disabled = True

LINGER_S = 1.0
"""How long what is left of a body is read after it was refused, so that the client sees the refusal and not a reset."""


@asynccontextmanager
async def open_proxy(
    engine: Engine,
    chat_format: ChatFormat,
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: ProxyLimits | None = None,
    training: bool = False,
    adapters: tuple[str, ...] = (),
    middleware: Callable[[Proxy], Handle] | None = None,
) -> AsyncIterator[Proxy]:
    """Serve `engine` as `model` on `host`:`port` (0: a free one) for the length of the context.

    With `training` what it records is to be trained on, and images, which are not yet, are refused. With `adapters`, roles that have LoRA adapters
    of their own, calls of other roles are refused. `middleware` may answer more paths over
    HTTP than `Proxy.handle`, which it is expected to call for the rest.
    """
    limits = limits or ProxyLimits()
    async with anyio.create_task_group() as tasks:
        proxy = Proxy(
            engine=engine,
            chat_format=chat_format,
            model=model,
            limits=limits,
            training=training,
            tasks=tasks,
            adapters=adapters,
        )
        tasks.start_soon(proxy.sessions.close_idle)
        handle = proxy.handle if middleware is None else middleware(proxy)
        runner = web.ServerRunner(_server(handle, limits), shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
            proxy.url = _url(host, runner.addresses[0][1])
            yield proxy
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await runner.cleanup()
            tasks.cancel_scope.cancel()


def _url(host: str, port: int) -> str:
    """Return the address at which programs of this machine reach what listens on `host`."""
    shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - all interfaces
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _server(handle: Handle, limits: ProxyLimits) -> web.Server:
    """Return aiohttp's server without its router: `handle` has a table of paths, which the in-process clients use too."""
    loop = asyncio.get_running_loop()
    return web.Server(
        lambda request: _answer(request, handle, limits),
        request_factory=lambda head, body, protocol, writer, task: web.BaseRequest(
            head, body, protocol, writer, task, loop, client_max_size=limits.max_request_bytes
        ),
        handler_cancellation=True,
        access_log=None,
        logger=_unheard,
        lingering_time=LINGER_S,
    )


async def _answer(request: web.BaseRequest, handle: Handle, limits: ProxyLimits) -> web.StreamResponse:
    target = f"{request.path}?{request.query_string}" if request.query_string else request.path
    reply = await handle(request.method, target, request.headers, lambda: _receive(request, limits))
    response = web.StreamResponse(headers=reply.headers)
    if reply.events is None:  # its head and its body are sent in one piece
        response = web.Response(status=reply.status, headers=reply.headers, body=reply.body)
    await response.prepare(request)
    if reply.events is not None:
        async with aclosing(reply.events) as events:
            async for event in events:
                with _bounded(request, limits):
                    await response.write(event)
    with _bounded(request, limits):
        await response.write_eof()
    return response


@contextmanager
def _bounded(request: web.BaseRequest, limits: ProxyLimits) -> Iterator[None]:
    """Hang up, which cancels the handler, where the client does not take within the time allowed what the block writes."""
    with anyio.move_on_after(limits.write_timeout_s) as bound:
        yield
    if bound.cancelled_caught and request.transport is not None:
        log.warning("a client did not take a piece of its reply within %g s", limits.write_timeout_s)
        request.transport.abort()


async def _receive(request: web.BaseRequest, limits: ProxyLimits) -> bytes:
    """Return the body of a request, decompressed where it says how it is compressed.

    Raises:
        ApiError: It is too large, not sound, or did not arrive in time.
    """
    try:
        with anyio.fail_after(limits.body_timeout_s):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large(limits) from None
    except TimeoutError:
        message = f"The body did not arrive within {limits.body_timeout_s:g} s."
        raise ApiError(408, message, code="request_timeout") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise ApiError(400, f"The body cannot be read: {error}.", code="invalid_body") from None
