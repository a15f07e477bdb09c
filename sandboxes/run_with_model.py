"""Run a command, in a container or a warm sandbox without a network, that reaches one model and nothing else: the key stays outside.

command ─► http://127.0.0.1 ─► inside/relay.py ─► the pipes of its process ─► here: the key is put in ─► the model's server
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import httpx2

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes.container import Container, ContainerProcess
from agentrl.sandboxes.inside import relay
from agentrl.sandboxes.process import Process
from agentrl.sandboxes.sandbox import Sandbox

RELAY = "from agentrl.sandboxes.inside.relay import main; main()"
MAX_TRAFFIC_MB = 256.0
"""Of requests, both ways, in base64."""
MAX_REQUESTS = 10_000
"""Of one command, where its caller says nothing: each is a task of this process while it is answered."""
INSIDE_KEY = "outside"
"""What the command is given for a key. The real one is put in its place on the way."""
REPORT_S = 5.0
"""How much longer than the command the relay may take, which tells what a command said whose time is up."""
SHOWN_REFUSAL_BYTES = 500
"""Of the body of an answer that is an error."""
_COUNTS_TOKENS = ("/count_tokens", ":countTokens")
_PASSED_ON = {"content-type", "anthropic-version", "anthropic-beta", "accept"}


@dataclass(frozen=True)
class CommandResult:
    """How the command ended."""

    exit_code: int | None
    """None: it was stopped by a limit, such as its time."""
    stdout: str
    stderr: str
    requests: int = 0
    """What it asked of the model, the one that was too many included."""
    replies: int = 0
    """Requests for a reply of the model that got one."""
    refusal: str = ""
    """The last answer that was an error: the path, the status and what was said. Empty where there was none."""


async def run_with_model(
    place: Sandbox | Container,
    argv: Sequence[str],
    *,
    base_url: str,
    api_key: str,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: bytes = b"",
    timeout_s: float = 600.0,
    max_requests: int = MAX_REQUESTS,
) -> CommandResult:
    """Run a command, and pass its requests on to the model.

    Of each output stream the last megabyte is kept.

    Args:
        place: Where it runs. All that it started there ends with it.
        argv: The command.
        base_url: The address of the model, with or without /v1.
        api_key: The key that its requests get, on their way.
        env: Further variables of the command. `{url}` in a value becomes the address at which it finds the server of `base_url`.
        cwd: Its folder in a container; None: the container's.
        stdin: Its standard input.
        timeout_s: How long it may take, in seconds.
        max_requests: How many requests it may make. It is stopped at the next one.

    Returns:
        How it ended.

    Raises:
        SandboxError: The image has no python3 for the relay.
        SandboxLostError: The sandbox is lost.
    """
    async with (
        _relay(place, cwd, timeout_s + REPORT_S) as process,
        await in_thread(lambda: httpx2.AsyncClient(timeout=None, trust_env=False)) as http,
    ):
        model = _Model(http, httpx2.URL(base_url.removesuffix("/").removesuffix("/v1")), api_key)
        sending, answers = anyio.Lock(), _Answers()
        given = {"argv": list(argv), "env": dict(env or {}), "timeout_s": timeout_s}
        first = {**given, "stdin": base64.b64encode(stdin).decode()}
        finished, asked, lost = CommandResult(None, "", ""), 0, None
        with anyio.move_on_after(timeout_s + REPORT_S):
            await process.send(json.dumps(first).encode() + b"\n")
            async with anyio.create_task_group() as requests:
                try:
                    while (line := await process.read_line()) is not None:
                        message = _understood(line, model)
                        if isinstance(message, CommandResult):
                            finished = message
                            break
                        if message is None:
                            continue
                        asked += 1
                        if asked > max_requests:
                            break
                        requests.start_soon(_answer, process, sending, answers, http, *message)
                except SandboxLostError as error:
                    lost = error
                requests.cancel_scope.cancel()
    if lost is not None:
        raise lost
    return replace(finished, requests=asked, replies=answers.replies, refusal=answers.refusal)


@asynccontextmanager
async def _relay(
    place: Sandbox | Container, cwd: str | None, timeout_s: float
) -> AsyncIterator[Process | ContainerProcess]:
    if isinstance(place, Sandbox):
        limits = place.spec.limits.but(output_mb=MAX_TRAFFIC_MB)
        async with await place.start_python(RELAY, timeout_s=timeout_s, limits=limits) as process:
            yield process
        return
    found = await place.run(["python3", "--version"])
    if not found.ok:
        raise SandboxError(
            f"the image {place.spec.image} has no python3, by which an agent there reaches the model; install one in it, or take the agent 'shell'"
        )
    source = f"{await in_thread(Path(relay.__file__).read_text)}\nmain()"
    async with place.start(["python3", "-c", source], cwd=cwd) as started:
        yield started


@dataclass(frozen=True)
class _Model:
    """The server that requests go to."""

    http: httpx2.AsyncClient
    url: httpx2.URL
    """Without /v1."""
    api_key: str

    def request(self, message: dict[str, Any]) -> httpx2.Request:
        """Return what a message of the relay asks of the server, with the key."""
        passed = {name: str(value) for name, value in message["headers"].items() if name in _PASSED_ON}
        keys = {"authorization": f"Bearer {self.api_key}", "x-api-key": self.api_key}
        # A path alone: put after the address as text, "@elsewhere/" would name another server.
        url = self.url.copy_with(raw_path=message["path"].encode())
        body = base64.b64decode(message["body"])
        return self.http.build_request(message["method"], url, headers={**passed, **keys}, content=body)


def _understood(line: bytes, model: _Model) -> CommandResult | tuple[httpx2.Request, int] | None:
    """Return what a line of the relay says: how the command ended, or a request and its number.

    None is for anything else: a program may write what it likes into the pipe of the relay.
    """
    try:
        message = json.loads(line)
        if message["kind"] == "exit":
            out, err = (base64.b64decode(message[name]).decode(errors="replace") for name in ("stdout", "stderr"))
            return CommandResult(_exit_code(message["code"]), out, err)
        return model.request(message), int(message["id"])
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        httpx2.InvalidURL,
    ):
        return None


def _exit_code(given: Any) -> int | None:
    if given is None:
        return None
    code = int(given)
    if not -64 <= code <= 255:
        raise ValueError(f"{code} is no exit code")
    return code


@dataclass
class _Answers:
    """What the server said to the requests for a reply; others, such as for the names of models, or to count tokens, count for nothing."""

    replies: int = 0
    refusal: str = ""

    def add(self, request: httpx2.Request, status: int, said: str) -> None:
        """Count an answer. Status 0: there was none."""
        path = request.url.path
        if request.method != "POST" or path.endswith(_COUNTS_TOKENS):
            return
        if HTTPStatus.OK <= status < HTTPStatus.BAD_REQUEST:
            self.replies += 1
        else:
            self.refusal = f"{path}: {status or 'no answer'}: {said.strip()}"


async def _answer(
    process: Process | ContainerProcess,
    sending: anyio.Lock,
    answers: _Answers,
    http: httpx2.AsyncClient,
    request: httpx2.Request,
    number: int,
) -> None:
    said = bytearray()

    async def send(status: int, kind: str, data: bytes, *, last: bool) -> None:
        part = {"id": number, "status": status, "headers": {"content-type": kind}, "last": last}
        line = json.dumps({**part, "data": base64.b64encode(data).decode()}).encode() + b"\n"
        async with sending:
            await process.send(line)

    try:
        status = 0
        async for status, kind, data in _reply(http, request):
            if status >= HTTPStatus.BAD_REQUEST:
                said += data[: SHOWN_REFUSAL_BYTES - len(said)]
            await send(status, kind, data, last=False)
        answers.add(request, status, said.decode(errors="replace"))
        await send(200, "", b"", last=True)
    except httpx2.HTTPError as error:
        answers.add(request, 0, f"{type(error).__name__} {error}")
        await send(502, "text/plain", str(error).encode(), last=True)
    except SandboxLostError:
        return  # the loop that reads finds out too


async def _reply(http: httpx2.AsyncClient, request: httpx2.Request) -> AsyncIterator[tuple[int, str, bytes]]:
    response: Any = await http.send(request, stream=True)
    try:
        kind = response.headers.get("content-type", "application/octet-stream")
        yield response.status_code, kind, b""
        async for data in response.aiter_bytes():
            yield response.status_code, kind, data
    finally:
        await response.aclose()
