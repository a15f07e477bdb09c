"""What clients send to the proxy, kept as lines of JSON: one file a test. Its first line names the client and its version, and each other line is one request.

    {"client": "openai for Node", "version": "6.49.0"}
    {"session": 0, "method": "POST", "path": "/v1/responses", "headers": {...}, "body": {...}, "status": 200, "ids": [...], "replies": ["..."]}

    AGENTRL_RECORD_CLIENTS=tests/proxy/conformance pytest tests/proxy/test_agents.py

records what the clients of that file send; so does every test that opens its proxy with a `Recorder`. Keys and addresses are left out: `session` numbers the keys. The ids that the proxy gave are kept beside
each request, and so are the model's replies (null: the engine failed), which the replay gives again. Long texts, which are the clients' own prompts, are cut: the form of a request is kept, and not its prose.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from agentrl.errors import EngineError
from agentrl.proxy import Proxy
from agentrl.proxy.http_messages import Body, Handle, Response, request_key

FOLDER = os.environ.get("AGENTRL_RECORD_CLIENTS")
LONGEST = 60
"""Characters of a text that are kept."""
BASE64 = re.compile(r"[A-Za-z0-9+/]{60,400}={0,2}")
"""Small files, which are kept whole: an image that is cut is none."""
ID = re.compile(r'"((?:resp|msg|fc|rs|ctc|call|toolu|chatcmpl)[_-][\w-]+)"')
KEPT_HEADERS = (
    "accept",
    "anthropic-beta",
    "anthropic-version",
    "content-type",
    "openai-beta",
    "user-agent",
    "x-app",
    "x-stainless-lang",
    "x-stainless-retry-count",
)


def shortened(value: Any) -> Any:
    """A body with its long texts cut; what is JSON inside a text, such as a tool's arguments, is left whole."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value]
    if not isinstance(value, str) or len(value) <= LONGEST or value[:1] in "{[":
        return value
    return value if BASE64.fullmatch(value.rpartition("base64,")[2]) else value[:LONGEST] + "…"


def ids_in(reply: str) -> list[str]:
    """The ids that the proxy gave, in the order in which they come first. Later requests may name them."""
    return [*dict.fromkeys(ID.findall(reply))]


_REPLIES: ContextVar[list[str | None]] = ContextVar("_REPLIES")
"""Replies of the model to the request that is being answered."""


async def _noted(events: AsyncGenerator[bytes, None], ids: list[str]) -> AsyncGenerator[bytes, None]:
    said = bytearray()
    async with aclosing(events):
        async for event in events:
            said += event
            yield event
    ids += ids_in(said.decode())


@dataclass
class Recorder:
    """Keeps what a client sends in one test, and what the model said to it."""

    client: str
    version: str
    name: str = field(
        default_factory=lambda: re.sub(
            r"[^\w.-]+", "-", os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0]
        ).strip("-")
    )
    lines: list[dict[str, Any]] = field(default_factory=list)

    def saying(self, decide: Callable[[str], str]) -> Callable[[str], str]:
        """A policy for `PolicyByPrompt` that replies as `decide` does. What it replies is kept with the request that it answers."""

        def reply(prompt: str) -> str:
            replies = _REPLIES.get([])
            try:
                replies.append(decide(prompt))
            except EngineError:
                replies.append(None)
                raise
            return str(replies[-1])

        return reply

    def around(self, proxy: Proxy) -> Handle:
        """The proxy, as a middleware that keeps each request."""
        keys: list[str] = []

        async def handle(method: str, path: str, headers: Mapping[str, str], body: Body) -> Response:
            key = request_key(headers, path.partition("?")[2])
            if key not in keys:
                keys.append(key)
            data = body if isinstance(body, bytes) else await body()
            replies: list[str | None] = []
            _REPLIES.set(replies)
            line = {
                "session": keys.index(key),
                "method": method,
                "path": re.sub(r"([?&]key=)[^&]*", r"\1KEY", path),
                "headers": {name: headers[name] for name in KEPT_HEADERS if name in headers},
                "body": shortened(json.loads(data)) if data else None,
            }
            self.lines.append(line)
            response = await proxy.handle(method, path, headers, data)
            ids: list[str] = []
            if response.events is None:
                ids += ids_in(response.body.decode())
            else:
                response = replace(response, events=_noted(response.events, ids))
            line |= {"status": response.status, "ids": ids, "replies": replies}
            return response

        return handle

    async def save(self) -> None:
        """Write what was kept, where it is asked for."""
        if FOLDER is not None:
            lines = [{"client": self.client, "version": self.version}, *self.lines]
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            await anyio.Path(FOLDER, f"{self.name}.jsonl").write_text(text)
