"""A server that speaks SGLang's native API over loopback and answers what a test scripts."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]
Answer = list[Any] | web.Response
"""The states of a streamed reply (bytes are sent as they are, a coroutine function is called), or a response in its place."""


def sound_states(
    count: int, *, version: int = 0, piece: int = 4, first: int = 0, length: int | None = None, prompt_tokens: int = 3
) -> list[Json]:
    """The states of a sound reply of ids first, first + 1, ..., each with the new tokens alone, as a server that reports versions."""
    states: list[Json] = []
    for start in range(0, count, piece):
        end = min(count, start + piece)
        ids = list(range(first + start, first + end))
        meta: Json = {
            "finish_reason": {"type": "length", "length": length or count} if end == count else None,
            "prompt_tokens": prompt_tokens,
            "weight_version": str(version),
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        }
        if end == count:
            meta["weight_versions"] = [{"version": str(version), "start": 0, "end": count}]
        states.append({"output_ids": ids, "meta_info": meta})
    return states


@dataclass
class ScriptedServer:
    """`answer` says what `/generate` answers to a request's body; `load` what a weight update answers; `control` what any other
    path does."""

    answer: Callable[[Json], Answer]
    load: Callable[[Json], web.Response] = lambda body: web.json_response({"success": True, "message": ""})
    control: Callable[[str], web.Response] = lambda path: web.json_response({"success": True})
    told: list[str] = field(default_factory=list)
    """The other paths that were asked for."""
    info: Json = field(default_factory=dict)
    """What `/model_info` and `/server_info` answer, beside what they must."""
    asked: list[Json] = field(default_factory=list)
    """The requests that were streamed."""
    traceparents: list[str | None] = field(default_factory=list)
    """The traces that these name."""
    version: int = 0
    url: str = ""

    async def generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.asked.append(body)
        self.traceparents.append(http.headers.get("traceparent"))
        answer = self.answer(body)
        if isinstance(answer, web.Response):
            return answer
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        with suppress(ConnectionError):  # a client that has read enough is gone
            for state in answer:
                if inspect.iscoroutinefunction(state):
                    await state()
                    continue
                event = state if isinstance(state, bytes) else b"data: " + json.dumps(state).encode() + b"\n\n"
                await response.write(event)
            await response.write(b"data: [DONE]\n\n")
        return response

    async def update(self, http: web.Request) -> web.Response:
        body = await http.json()
        response = self.load(body)
        if response.status == 200:
            self.version = int(body["weight_version"])
        return response

    async def describe(self, http: web.Request) -> web.Response:
        known = {"incremental_streaming_output": True, "weight_version": str(self.version)}
        return web.json_response({**known, **self.info})

    async def other(self, http: web.Request) -> web.Response:
        self.told.append(http.path)
        return self.control(http.path)


@asynccontextmanager
async def scripted_server(
    answer: Callable[[Json], Answer], load: Callable[[Json], web.Response] | None = None
) -> AsyncIterator[ScriptedServer]:
    """Serve for the length of the context."""
    server = ScriptedServer(answer)
    if load is not None:
        server.load = load
    app = web.Application()
    app.add_routes([web.get(path, server.describe) for path in ("/model_info", "/server_info", "/health")])
    app.add_routes([web.post("/generate", server.generate), web.post("/update_weights_from_disk", server.update)])
    app.router.add_post("/{path:.*}", server.other)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.url = f"http://127.0.0.1:{port}"
        yield server
    finally:
        await runner.cleanup()
