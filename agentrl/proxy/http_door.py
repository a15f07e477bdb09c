"""The door for other programs: HTTP on a socket, with a bound on everything that a client can draw out.

connected ─► head (head_timeout_s) ─► key checked ─► body (body_timeout_s) ─► answered (write_timeout_s)
    ▲                                                                            │
    └──────────────────── keep_alive_timeout_s ◄─────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager

import anyio
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agentrl.config.proxy import ProxyLimits
from agentrl.engine.protocol import Engine
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.bounds import too_large
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.endpoints import Body, Proxy
from agentrl.proxy.http_response import Response
from agentrl.proxy.model_names import check_names

log = logging.getLogger(__name__)
# aiohttp logs heads that it cannot read, and they hold keys.
_unheard = logging.Logger("aiohttp.server")
_unheard.disabled = True

LINGER_S = 1.0
"""How long what is left of a body is read after it was refused, so that the client sees the refusal and not a reset."""
PROBES_S = (0.1, 0.5, 2.0)
"""When a client that sends no more is asked whether it still reads; from then on, as long as the last of these apart."""
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT = b":\n\n"
"""An event that is none."""
SLOWEST_READER = 16 * 2**10
"""Bytes a second that a client reads of its reply at least."""

Handle = Callable[[str, str, Mapping[str, str], Body], Awaitable[Response]]


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
    refuse_altered: bool = False,
    adapters: tuple[str, ...] = (),
    middleware: Callable[[Proxy], Handle] | None = None,
) -> AsyncIterator[Proxy]:
    """Serve `engine` as `model` on `host`:`port` (0: a free one) for the length of the context.

    With `training` what it records is to be trained on, and images, which are not yet, are refused; with `refuse_altered` other distributions than the policy's own are too. With `adapters`, roles that have LoRA adapters
    of their own, calls of other roles are refused. `middleware` may answer more paths over
    HTTP than `Proxy.handle`, which it is expected to call for the rest.

    Raises:
        ConfigError: `proxy.model_names` maps a name to a model that is not served.
    """
    check_names(model, limits or ProxyLimits())
    async with anyio.create_task_group() as tasks:
        proxy = Proxy(engine, chat_format, model, tasks, limits or ProxyLimits(), training, refuse_altered, adapters)
        handle = proxy.handle if middleware is None else middleware(proxy)
        connections = _Connections(proxy.limits)
        app = web.Application(client_max_size=proxy.limits.max_request_bytes)

        async def answer(http: web.Request) -> web.StreamResponse:
            with connections.answering(http) as connection:
                response = await _answer(proxy.limits, handle, http, connection)
                if connection.half_closed:
                    response.force_close()
                return response

        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            shutdown_timeout=1,
            access_log=None,
            logger=_unheard,
            lingering_time=LINGER_S,
            keepalive_timeout=proxy.limits.keep_alive_timeout_s,
            auto_decompress=False,
        )
        await runner.setup()
        assert runner.server is not None
        connections.make = runner.server
        tasks.start_soon(proxy.sessions.close_idle)
        server: asyncio.Server | None = None
        try:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: _Connection(connections), host, port, backlog=1024)
            listening = server.sockets[0]
            proxy.url = _url(host, listening.getsockname()[1])
            yield proxy
        finally:
            if server is not None:
                server.close()
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await runner.cleanup()
            tasks.cancel_scope.cancel()


def _url(host: str, port: int) -> str:
    """Return the address at which programs of this machine reach what listens on `host`."""
    shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - all interfaces
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


async def _answer(
    limits: ProxyLimits, handle: Handle, http: web.Request, connection: _Connection
) -> web.StreamResponse:
    target = f"{http.path}?{http.query_string}" if http.query_string else http.path
    reply = await handle(http.method, target, http.headers, lambda: _receive(http, limits))
    connection.harmless = b""
    if reply.events is None:
        response = web.Response(body=reply.body, status=reply.status, headers=reply.headers)
        with anyio.move_on_after(limits.write_timeout_s + len(reply.body) / SLOWEST_READER) as bound:
            await response.prepare(http)
            await response.write_eof()
        if bound.cancelled_caught:
            _give_up(http, limits)
        return response
    stream = web.StreamResponse(status=reply.status, headers=reply.headers)
    async with aclosing(reply.events) as events:
        if chunked := http.version >= (1, 1):
            stream.enable_chunked_encoding()
        await stream.prepare(http)
        connection.harmless = b"%x\r\n%b\r\n" % (len(COMMENT), COMMENT) if chunked else COMMENT
        async for event in events:
            with anyio.move_on_after(limits.write_timeout_s + len(event) / SLOWEST_READER) as bound:
                await stream.write(event)
            if bound.cancelled_caught:
                _give_up(http, limits)
                break
    return stream


async def _receive(http: web.Request, limits: ProxyLimits) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: It is too large, encoded, not sound, or did not arrive in time.
    """
    if (encoding := http.headers.get("Content-Encoding", "identity").lower()) != "identity":
        message = f"A body in the encoding {encoding!r} is not read: send it as it is."
        raise ApiError(415, message, param="Content-Encoding", code="unsupported_encoding")
    if (http.content_length or 0) > limits.max_request_bytes:
        raise too_large(limits)
    try:
        with anyio.fail_after(limits.body_timeout_s):
            return await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large(limits) from None
    except TimeoutError:
        message = f"The body did not arrive within `proxy.body_timeout_s` = {limits.body_timeout_s:g} s."
        raise ApiError(408, message, code="request_timeout") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise ApiError(400, f"The body cannot be read: {error}.", code="invalid_body") from None


def _give_up(http: web.Request, limits: ProxyLimits) -> None:
    log.warning("a client read nothing of its reply for %g s", limits.write_timeout_s)
    if http.transport is not None:
        http.transport.abort()


class _Connections:
    """Those that are open, and among them those that no request is being answered on, idle for longest first."""

    def __init__(self, limits: ProxyLimits) -> None:
        self.limits = limits
        self.make: Callable[[], asyncio.Protocol]
        self.open: dict[asyncio.Protocol, _Connection] = {}
        self.idle: OrderedDict[_Connection, None] = OrderedDict()

    @contextmanager
    def answering(self, http: web.Request) -> Iterator[_Connection]:
        """While a request is answered, its connection is not idle."""
        connection = self.open.get(http.protocol)
        if connection is None:  # it was lost meanwhile
            yield _Connection(self)
            return
        self.idle.pop(connection, None)
        connection.expect_head(None)
        connection.harmless = INTERIM if http.version >= (1, 1) else b""
        try:
            yield connection
        finally:
            connection.harmless = b""
            if http.protocol in self.open:
                self.idle[connection] = None
                connection.expect_head(self.limits.keep_alive_timeout_s)

    def admit(self) -> bool:
        """Return whether there is room for one more; the one that was idle for longest makes it."""
        if len(self.open) < self.limits.max_connections:
            return True
        if not self.idle:
            return False
        connection, _ = self.idle.popitem(last=False)
        connection.abort()
        return True


class _Connection(asyncio.Protocol):
    """One connection: aiohttp's protocol within bounds of number and time, which it has none of for heads."""

    def __init__(self, connections: _Connections) -> None:
        self._connections = connections
        self._protocol = connections.make()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._prober: asyncio.TimerHandle | None = None
        self.harmless = b""
        """What may be written now, as clients pass over it; nothing between the pieces of a reply that is no stream."""
        self.half_closed = False
        """Whether the client sends no more. It may still read: or it is gone, which looks the same."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        admitted = self._connections.admit()
        self._connections.open[self._protocol] = self
        self._connections.idle[self] = None
        self._protocol.connection_made(transport)
        self.expect_head(self._connections.limits.head_timeout_s)
        if not admitted:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if not self._head_begun and self in self._connections.idle:
            self._head_begun = True
            self.expect_head(self._connections.limits.head_timeout_s, begun=True)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        self._protocol.eof_received()
        if self in self._connections.idle and not self._head_begun:
            return None  # nothing was asked: it is closed
        self.half_closed = True
        self._probe(0)
        return True

    def _probe(self, number: int) -> None:
        """Write what a client that reads passes over. One that is gone answers that with a reset, and the next finds it."""
        if self._transport is not None and self.harmless:
            self._transport.write(self.harmless)
        wait_s = PROBES_S[min(number, len(PROBES_S) - 1)]
        self._prober = asyncio.get_running_loop().call_later(wait_s, self._probe, number + 1)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.open.pop(self._protocol, None)
        self._connections.idle.pop(self, None)
        self.expect_head(None)
        if self._prober is not None:
            self._prober.cancel()
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def expect_head(self, timeout_s: float | None, *, begun: bool = False) -> None:
        """Close the connection unless a request's head is whole within so long; None: it is whole."""
        if self._timer is not None:
            self._timer.cancel()
        self._head_begun = begun
        self._timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
