"""What clients send to the proxy, kept as lines of JSON: one file a test, one line a request. `user-agent` tells the client and its version.

    AGENTRL_RECORD_CLIENTS=tests/proxy/conformance pytest tests/proxy/test_agents.py

records what the clients of that file send; so does `tests/workflows/test_real_harnesses.py`. Keys and addresses are left out, the ids that the proxy gave are kept beside each request, and long texts,
which are the clients' own prompts, are cut: the form of a request is kept, and not its prose.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from agentrl.proxy import Proxy
from agentrl.proxy.endpoints import Body, Response
from agentrl.proxy.http_door import Handle

FOLDER = os.environ.get("AGENTRL_RECORD_CLIENTS")
LONGEST = 60
"""Characters of a text that are kept."""
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
)


def shortened(value: Any) -> Any:
    """A body with its long texts cut; what is JSON inside a text, such as a tool's arguments, is left whole."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value]
    return value[:LONGEST] + "…" if isinstance(value, str) and len(value) > LONGEST and value[:1] not in "{[" else value


def ids_in(reply: str) -> list[str]:
    """The ids that the proxy gave, in the order in which they come first. Later requests may name them."""
    return [*dict.fromkeys(ID.findall(reply))]


async def _noted(events: AsyncGenerator[bytes, None], ids: list[str]) -> AsyncGenerator[bytes, None]:
    said = bytearray()
    async with aclosing(events):
        async for event in events:
            said += event
            yield event
    ids += ids_in(said.decode())


@dataclass
class Recorder:
    """Keeps what a client sends in one test."""

    name: str = field(
        default_factory=lambda: re.sub(
            r"[^\w.-]+", "-", os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0]
        ).strip("-")
    )
    lines: list[dict[str, Any]] = field(default_factory=list)

    def around(self, proxy: Proxy) -> Handle:
        """The proxy, as a middleware that keeps each request."""

        async def handle(method: str, path: str, headers: Mapping[str, str], body: Body) -> Response:
            data = body if isinstance(body, bytes) else await body()
            response = await proxy.handle(method, path, headers, data)
            ids: list[str] = []
            if response.events is None:
                ids += ids_in(response.body.decode())
            else:
                response = replace(response, events=_noted(response.events, ids))
            kept = {name: headers[name] for name in KEPT_HEADERS if name in headers}
            sent = shortened(json.loads(data)) if data else None
            line = {"method": method, "path": path, "headers": kept, "body": sent}
            self.lines.append({**line, "status": response.status, "ids": ids})
            return response

        return handle

    async def save(self) -> None:
        """Write what was kept, where it is asked for."""
        if FOLDER is not None:
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in self.lines)
            await anyio.Path(FOLDER, f"{self.name}.jsonl").write_text(text)
