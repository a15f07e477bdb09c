"""The server of the viewer: a small JSON API over run directories, and the page that asks it. It writes nothing, and acts where it is opened to.

    serving_in_thread ─► a thread with an event loop of its own ─► app ─► a thread for each question ─► agentrl.viewer.queries

On loopback anybody of this machine may look, by a name of this machine: a page of another name, which a browser was led to believe is
here, is refused. On any other address one needs the token that the printed address has, which a cookie then keeps.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from aiohttp import web
from aiohttp.typedefs import Handler
from anyio.from_thread import start_blocking_portal

from agentrl.errors import AgentRLError, ConfigError, StoreError, UsageError, one_line
from agentrl.proxy.http_messages import strict_json
from agentrl.system.tasks import in_thread
from agentrl.system.this_process import LOOPBACK, is_loopback
from agentrl.viewer.act import Acts, body_of
from agentrl.viewer.export import FORMATS, exported
from agentrl.viewer.filters import read_query
from agentrl.viewer.queries import ShownRun

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
    "Cache-Control": "no-store",
}
"""The headers of every response, which keep what a model wrote from being more than text."""


def make_app(runs: Sequence[ShownRun], token: str = "", acts: Acts | None = None) -> web.Application:
    """Return the aiohttp application that answers the page's questions.

    Args:
        runs: The runs, by their numbers.
        token: What a browser must know; "": it is on loopback.
        acts: What the page may do; None: it only reads.
    """
    limiter = anyio.CapacityLimiter(QUESTIONS_AT_ONCE)

    async def in_limited_thread(question: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(question, limiter=limiter)

    def shown_of(http: web.Request) -> ShownRun:
        number = int(http.match_info["run"])
        if number >= len(runs):
            raise StoreError(f"there is no run {number}; {len(runs)} are shown")
        return runs[number]

    def get(path: str, answer: Callable[[web.Request], Any]) -> web.RouteDef:
        async def handler(http: web.Request) -> web.Response:
            body = await in_limited_thread(lambda: strict_json(answer(http)))
            return web.Response(body=body, content_type="application/json")

        return web.get("/api/runs" + path, handler)

    def get_of_run(path: str, answer: Callable[[ShownRun, web.Request], Any]) -> web.RouteDef:
        return get(r"/{run:\d+}" + path, lambda http: answer(shown_of(http), http))

    def heads(http: web.Request) -> Any:
        return {"runs": [{"run": i, "acts": acts is not None, **shown.head()} for i, shown in enumerate(runs)]}

    async def export(http: web.Request) -> web.StreamResponse:
        form, shown = http.query.get("format", "jsonl"), shown_of(http)
        if form not in FORMATS:
            raise UsageError(f"format = {form!r}: use one of {', '.join(FORMATS)}")
        episodes, _ = await in_limited_thread(lambda: shown.fitting(read_query(http.query)))
        pieces = exported(form, shown, episodes)
        piece = await in_limited_thread(lambda: next(pieces, b""))  # what fails, fails before the answer has begun
        suffix, kind = FORMATS[form]
        name = re.sub(r"[^\w.-]", "_", shown.path.name)
        attachment = f'attachment; filename="{name}-{len(episodes)}-episodes{suffix}"'
        response = web.StreamResponse(headers={"Content-Type": kind, "Content-Disposition": attachment})
        await response.prepare(http)
        while piece:
            await response.write(piece)
            piece = await in_limited_thread(lambda: next(pieces, b""))
        return response

    async def act(http: web.Request) -> web.Response:
        if acts is None:
            raise web.HTTPForbidden(text="this page only reads; `agentrl view --act RUN` serves one that acts")
        kind, number = http.match_info["act"], int(http.match_info["id"])
        result = await acts.act(kind, shown_of(http), number, body_of(http, await http.read()))
        return web.Response(body=await in_limited_thread(lambda: strict_json(result)), content_type="application/json")

    async def index(http: web.Request) -> web.FileResponse:
        return web.FileResponse(PAGE / "index.html")

    async def secure(http: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        _check_allowed(request, token)
        return await handler(request)

    app = web.Application(middlewares=[_errors_as_json, guarded])
    app.on_response_prepare.append(secure)
    app.add_routes(
        [
            web.get("/", index),
            web.static("/static", PAGE),
            web.get(r"/api/runs/{run:\d+}/export", export),
            web.post(r"/api/runs/{run:\d+}/episodes/{id:\d{1,18}}/{act:fork|score|grade}", act),
            get("", heads),
            get_of_run("", lambda shown, http: shown.about()),
            get_of_run("/metrics", lambda shown, http: shown.steps(read_query(http.query).after)),
            get_of_run("/rewards", lambda shown, http: shown.rewards(read_query(http.query).size)),
            get_of_run("/speedup", lambda shown, http: shown.speedup()),
            get_of_run("/audit", lambda shown, http: shown.audit()),
            get_of_run("/episodes", lambda shown, http: shown.episodes(read_query(http.query))),
            get_of_run(r"/episodes/{id:\d{1,18}}", lambda shown, http: shown.episode(int(http.match_info["id"]))),
            get_of_run(
                r"/episodes/{id:\d{1,18}}/neighbours",
                lambda shown, http: shown.neighbours(int(http.match_info["id"]), read_query(http.query)),
            ),
            get_of_run(r"/groups/{id:\d{1,18}}", lambda shown, http: shown.group(int(http.match_info["id"]))),
        ]
    )
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRedirection:
        raise
    except web.HTTPException as error:
        status, text = error.status, str(error.text)
    except AgentRLError as error:
        status, text = 404 if isinstance(error, StoreError) else 400, str(error)
    except Exception as error:  # a store that was torn, say: the page goes on
        status, text = 500, f"{type(error).__name__}: {one_line(error)}"
    return web.json_response({"error": text}, status=status)


def _check_allowed(http: web.Request, token: str) -> None:
    """Let pass who may look.

    Raises:
        HTTPForbidden: Another page asks, or one without the token.
        HTTPSeeOther: The address had the token, which is a cookie now.
    """
    cookie = f"agentrl_view_{http.url.port}"

    def is_token(sent: str | None) -> bool:
        return hmac.compare_digest((sent or "").encode(errors="replace"), token.encode())

    if not token:
        if not is_loopback(str(http.url)):
            raise web.HTTPForbidden(text=f"{http.host} is not this machine; open the address that was printed")
    elif is_token(http.query.get("token")):
        redirect = web.HTTPSeeOther("/")
        redirect.set_cookie(cookie, token, httponly=True, samesite="Strict")
        raise redirect
    elif not is_token(http.cookies.get(cookie)):
        raise web.HTTPForbidden(text="open the address that was printed, with its token")


@asynccontextmanager
async def serving(
    paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0, acts: Acts | None = None
) -> AsyncIterator[str]:
    """Serve the page for the length of the context, and yield its address.

    Args:
        paths: Directories of runs and evaluations, which may not have begun yet.
        host: The address that it listens on.
        port: Its port; 0: a free one.
        acts: As for `make_app`.

    Raises:
        ConfigError: It cannot listen there.
    """
    token = "" if host in LOOPBACK else secrets.token_urlsafe(24)
    runs = [ShownRun(path.absolute()) for path in paths]
    runner = web.AppRunner(await in_thread(make_app, runs, token, acts), access_log=None, shutdown_timeout=1.0)
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
        with anyio.CancelScope(shield=True):  # bounded: no question takes long, and an act is cancelled
            await runner.cleanup()


@contextmanager
def serving_in_thread(paths: Sequence[Path]) -> Iterator[str]:
    """Serve the page in a thread of its own, beside a run that goes on in this process; yield its address.

    Raises:
        ConfigError: It cannot listen.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(paths)) as address:
        yield address
