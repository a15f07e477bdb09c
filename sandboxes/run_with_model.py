"""Run a command, in a container or a warm sandbox without a network, that reaches one model and nothing else: the key stays outside.

command ─► http://127.0.0.1 ─► inside/relay.py, beside it ─► its pipes ─► here: the key is put in ─► the model's server
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import anyio
import anyio.abc
import httpx2

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.container import Container, ContainerProcess
from agentrl.sandboxes.inside import relay
from agentrl.sandboxes.linked_sandbox import Process
from agentrl.sandboxes.sandbox import EndReason, ExecResult, Sandbox
from agentrl.system.tasks import in_thread

RELAY = "from agentrl.sandboxes.inside.relay import main; main()"
MAX_TRAFFIC_MB = 256.0
"""Of requests, in base64."""
INSIDE_KEY = "outside"
"""The key that the command has. The real one is put in its place on the way."""
REPORT_S = 5.0
"""How much longer than the command the relay may take."""
SHOWN_REFUSAL_BYTES = 500
"""Of the body of an answer that is an error."""
_COUNTS_TOKENS = ("/count_tokens", ":countTokens")
_PASSED_ON = {"content-type", "anthropic-version", "anthropic-beta", "accept", "traceparent", "tracestate"}


@dataclass
class ModelCalls:
    """The requests of a command to the model."""

    requests: int = 0
    """All of them, the one that was too many included."""
    replies: int = 0
    """Requests for a reply that got one; those for the names of models, or to count tokens, count for nothing here and below."""
    refusal: str = ""
    """The last answer that was an error: path, status, text. Empty where there was none."""


async def run_with_model(
    place: Sandbox | Container,
    argv: Sequence[str],
    *,
    base_url: str,
    api_key: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout_s: float = 600.0,
    max_requests: int = 10_000,
) -> tuple[ExecResult, ModelCalls]:
    """Run a command, and pass its requests on to the model.

    Args:
        place: Where it runs.
        argv: The command.
        base_url: The address of the model, with or without /v1.
        api_key: The key that its requests get, on their way.
        env: Further variables of the command. `{url}` in a value becomes the address at which it finds the server of `base_url`.
        stdin: Its standard input.
        timeout_s: How long it may take, in seconds.
        max_requests: How many requests it may make. It is stopped at the next one.

    Returns:
        How it ended, KILLED where it was stopped for its requests, and what it asked of the model.

    Raises:
        SandboxError: The image has no python3 for the relay.
        SandboxLostError: The sandbox is lost.
    """
    calls, done, failed = ModelCalls(), ExecResult(end_reason=EndReason.KILLED), None
    server = httpx2.URL(base_url.removesuffix("/").removesuffix("/v1"))
    async with (
        await in_thread(lambda: httpx2.AsyncClient(timeout=None, trust_env=False)) as http,
        _relay(place, timeout_s + REPORT_S) as (process, url),
        anyio.create_task_group() as group,
    ):
        requests = _Requests(process, http, server, api_key, calls, anyio.Lock())
        # The image may name a proxy, which knows nothing of the relay.
        variables = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **(env or {})}
        variables = {name: value.replace("{url}", url) for name, value in variables.items()}
        with anyio.CancelScope() as until_too_many:
            group.start_soon(requests.serve, group, max_requests, until_too_many)
            try:
                done = await place.run(argv, env=variables, stdin=stdin, timeout_s=timeout_s)
            except SandboxError as error:  # raised outside of the group, which would wrap it
                failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return done, calls


@asynccontextmanager
async def _relay(place: Sandbox | Container, timeout_s: float) -> AsyncIterator[tuple[Process | ContainerProcess, str]]:
    """Yield a running relay and its address.

    Raises:
        SandboxError: The image has no python3.
    """
    started: AbstractAsyncContextManager[Process | ContainerProcess]
    if isinstance(place, Sandbox):
        limits = place.spec.limits.changed(output_mb=MAX_TRAFFIC_MB)
        started = await place.start_python(RELAY, timeout_s=timeout_s, limits=limits)
    else:
        source = f"{await in_thread(Path(relay.__file__).read_text)}\nmain()"
        started = place.start(["python3", "-c", source], cwd="/")
    async with started as process:
        url = (await process.read_line() or b"").decode(errors="replace").strip()
        if not url.startswith("http://"):
            raise SandboxError(
                f"the image {place.spec.image} has no python3, by which an agent there reaches the model; install one in it, or take the agent 'shell'"
            )
        yield process, url


@dataclass(frozen=True)
class _Requests:
    """The requests that a relay passes on, and the server that they go to."""

    process: Process | ContainerProcess
    http: httpx2.AsyncClient
    server: httpx2.URL
    """Without /v1."""
    api_key: str
    calls: ModelCalls
    sending: anyio.Lock

    async def serve(self, answers: anyio.abc.TaskGroup, at_most: int, scope: anyio.CancelScope) -> None:
        """Answer requests, each in a task of its own, until there are too many: then the scope of the command is cancelled."""
        with suppress(SandboxLostError):  # the command finds out too
            while (line := await self.process.read_line()) is not None:
                if (request := self._request(line)) is None:
                    continue
                self.calls.requests += 1
                if self.calls.requests > at_most:
                    scope.cancel()
                    break
                answers.start_soon(self._answer, *request)

    def _request(self, line: bytes) -> tuple[int, httpx2.Request] | None:
        """Return a request and its number; None for a line that is none, which an agent may write into the relay's pipe."""
        try:
            message = json.loads(line)
            headers = {name: str(value) for name, value in message["headers"].items() if name in _PASSED_ON}
            headers |= {"authorization": f"Bearer {self.api_key}", "x-api-key": self.api_key}
            # A path alone: put after the address as text, "@elsewhere/" would name another server.
            url = self.server.copy_with(raw_path=message["path"].encode())
            body = base64.b64decode(message["body"])
            return message["id"], self.http.build_request(message["method"], url, headers=headers, content=body)
        except (ValueError, KeyError, TypeError, AttributeError, httpx2.InvalidURL):
            return None

    async def _answer(self, number: int, request: httpx2.Request) -> None:
        status, shown = 0, bytearray()
        with suppress(SandboxLostError):
            try:
                response = await self.http.send(request, stream=True)
                status, kind = response.status_code, response.headers.get("content-type", "application/octet-stream")
                try:
                    await self._send(number, status, kind)
                    async for data in response.aiter_bytes():
                        shown += data[: SHOWN_REFUSAL_BYTES - len(shown)]
                        await self._send(number, status, kind, data)
                finally:
                    await response.aclose()
            except httpx2.HTTPError as error:
                status, shown = 0, bytearray(f"{type(error).__name__} {error}".encode())
                await self._send(number, HTTPStatus.BAD_GATEWAY, "text/plain", bytes(shown))
            self._count(request, status, shown.decode(errors="replace").strip())
            await self._send(number, status, "", last=True)

    async def _send(self, number: int, status: int, kind: str, data: bytes = b"", *, last: bool = False) -> None:
        piece = {"id": number, "status": status, "type": kind, "data": base64.b64encode(data).decode(), "last": last}
        async with self.sending:
            await self.process.send(json.dumps(piece).encode() + b"\n")

    def _count(self, request: httpx2.Request, status: int, shown: str) -> None:
        path = request.url.path
        if request.method != "POST" or path.endswith(_COUNTS_TOKENS):
            return
        if HTTPStatus.OK <= status < HTTPStatus.BAD_REQUEST:
            self.calls.replies += 1
        else:
            self.calls.refusal = f"{path}: {status or 'no answer'}: {shown}"
