"""The server of the viewer: a small JSON API over run directories, and the page that asks it. It writes nothing.

    serving_in_thread ─► a thread with an event loop of its own ─► app ─► a thread for each question ─► agentrl.viewer.queries

On loopback anybody of this machine may look, by a name of this machine: a page of another name, which a browser was led to believe is
here, is refused. On any other address one needs the token that the printed address has, which a cookie then keeps.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler
from anyio.from_thread import start_blocking_portal

from agentrl.errors import AgentRLError, ConfigError, StoreError, UsageError, one_line
from agentrl.viewer.export import FORMATS, exported
from agentrl.viewer.filters import wanted
from agentrl.viewer.queries import Shown
from agentrl.viewer.transcript import strict_json

T = TypeVar("T")
PAGE = Path(__file__).parent / "page"
QUESTIONS_AT_ONCE = 4
"""Questions that are answered at the same time, so that a run which is looked at has the machine for itself."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether a host, as an address has it, can only be this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Viewer:
    """The answers to the page's questions about some runs.

    Args:
        shown: The runs, by their numbers.
        token: What a browser must know; "": it is on loopback.
    """

    shown: Sequence[Shown]
    token: str = ""
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(QUESTIONS_AT_ONCE, "viewer"))

    def close(self) -> None:
        """Let go of its threads, when what they were asked is answered."""
        self._threads.shutdown(cancel_futures=True)

    def app(self) -> web.Application:
        """Return the aiohttp application."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        app = web.Application(middlewares=[guarded])
        run = r"/api/runs/{run:\d+}"
        answers: dict[str, Callable[[Shown, web.Request], dict[str, Any]]] = {
            "": lambda shown, http: shown.whole(),
            "/metrics": lambda shown, http: shown.steps(wanted(http.query).after),
            "/rewards": lambda shown, http: shown.rewards(wanted(http.query).points),
            "/audit": lambda shown, http: shown.audit(),
            "/episodes": self._episodes,
            r"/episodes/{id:\d{1,18}}": lambda shown, http: shown.episode(int(http.match_info["id"])),
            r"/groups/{id:\d{1,18}}": lambda shown, http: shown.group(int(http.match_info["id"])),
        }
        app.add_routes([web.get(run + path, self._answered(answer)) for path, answer in answers.items()])
        app.add_routes(
            [
                web.get("/", self._index),
                web.static("/static", PAGE),
                web.get("/api/runs", self._runs),
                web.get(f"{run}/export", self._export),
            ]
        )
        return app

    async def _runs(self, http: web.Request) -> web.Response:
        return await self._json(lambda: {"runs": [shown.head() for shown in self.shown], "act": False})

    def _answered(self, answer: Callable[[Shown, web.Request], dict[str, Any]]) -> Handler:
        async def handler(http: web.Request) -> web.Response:
            shown = self._of(http)
            return await self._json(lambda: answer(shown, http))

        return handler

    async def _json(self, answer: Callable[[], dict[str, Any]]) -> web.Response:
        body = await self._asked(lambda: strict_json(answer()))
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    def _episodes(self, shown: Shown, http: web.Request) -> dict[str, Any]:
        self._threads.submit(lambda: shown.reader)  # it takes seconds to load, and one of them will be opened
        return shown.episodes(wanted(http.query))

    def _of(self, http: web.Request) -> Shown:
        number = int(http.match_info["run"])
        if number >= len(self.shown):
            raise StoreError(f"there is no run {number}; {len(self.shown)} are shown")
        return self.shown[number]

    async def _asked(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)

    async def _export(self, http: web.Request) -> web.StreamResponse:
        form, shown = http.query.get("format", "jsonl"), self._of(http)
        if form not in FORMATS:
            raise UsageError(f"format = {form!r}: use one of {', '.join(FORMATS)}")
        asked = wanted(http.query)
        found, _ = await self._asked(lambda: shown.found(asked))
        pieces = exported(form, shown, found)
        first = await self._asked(lambda: next(pieces, b""))  # what fails, fails before the answer has begun
        suffix, kind = FORMATS[form]
        name = re.sub(r"[^\w.-]", "_", shown.path.name)
        response = web.StreamResponse(
            headers={
                "Content-Type": kind,
                "Content-Disposition": f'attachment; filename="{name}-{len(found)}-episodes{suffix}"',
                "Cache-Control": "no-store",
                **_HEADERS,
            }
        )
        await response.prepare(http)
        await response.write(first)
        while piece := await self._asked(lambda: next(pieces, b"")):
            await response.write(piece)
        return response

    async def _index(self, http: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE / "index.html")

    async def _guarded(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer who may look, with headers that keep what a model wrote from being more than text. Errors are JSON.

        Raises:
            HTTPForbidden: Another page asks; it is answered too.
            HTTPSeeOther: The address had the token, which is a cookie now.
        """
        try:
            if self.token:
                self._check_token(http)
            elif not is_loopback(http.url.host or ""):
                raise web.HTTPForbidden(text=f"{http.host} is not this machine; open the address that was printed")
            response = await handler(http)
        except AgentRLError as error:
            response = _error(404 if isinstance(error, StoreError) else 400, error)
        except web.HTTPSeeOther:
            raise
        except web.HTTPException as error:
            response = _error(error.status, error.text)
        except Exception as error:  # a store that was torn, say: the page goes on
            response = _error(500, f"{type(error).__name__}: {one_line(error)}")
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _check_token(self, http: web.Request) -> None:
        cookie = f"agentrl_view_{http.url.port}"
        if self._is_token(http.cookies.get(cookie, "")):
            return
        if not self._is_token(http.query.get("token", "")):
            raise web.HTTPForbidden(text="open the address that was printed, with its token")
        found = web.HTTPSeeOther("/")
        found.set_cookie(cookie, self.token, httponly=True, samesite="Strict")
        raise found

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def _error(status: int, error: object) -> web.Response:
    return web.Response(status=status, body=strict_json({"error": str(error)}), content_type="application/json")


@asynccontextmanager
async def serving(paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the page for the length of the context, and yield its address.

    Args:
        paths: Directories of runs and evaluations, which may not have begun yet.
        host: The address that it listens on.
        port: Its port; 0: a free one.

    Raises:
        ConfigError: It cannot listen there.
    """
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    viewer = Viewer([Shown(number, path.absolute()) for number, path in enumerate(paths)], token)
    runner = web.AppRunner(await asyncio.to_thread(viewer.app), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--host {host} --port {port}: cannot listen there: {one_line(error)}; name another, or leave both out"
            ) from error
        bound = runner.addresses[0][1]
        name = f"[{host}]" if ":" in host else host
        yield f"http://{name}:{bound}/" + (f"?token={token}" if token else "")
    finally:
        with anyio.CancelScope(shield=True):  # bounded: no question takes long
            await runner.cleanup()
            await asyncio.to_thread(viewer.close)


@contextmanager
def serving_in_thread(paths: Sequence[Path]) -> Iterator[str]:
    """Serve the page in a thread of its own, beside a run that goes on in this process; yield its address.

    Raises:
        ConfigError: It cannot listen.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(paths)) as address:
        yield address
