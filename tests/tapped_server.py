"""A server in front of a real one, which remembers what is generated: for clients that are other processes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from agentrl.record.tokens import Generation


@dataclass
class TappedServer:
    """It passes everything on to the server at `behind`, whose streams hold the new tokens of a state alone."""

    behind: str
    http: aiohttp.ClientSession
    url: str = ""
    calls: list[tuple[list[int], Generation]] = field(default_factory=list)
    """Ids that were sent, and the whole reply, of each that was streamed to its end."""

    async def pass_on(self, http: web.Request) -> web.StreamResponse:
        body = await http.read()
        async with self.http.request(http.method, self.behind + http.path, data=body, headers=http.headers) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(http)
            said = b""
            with suppress(ConnectionError):
                async for piece in answer.content.iter_any():
                    said += piece
                    await response.write(piece)
        if http.path == "/generate" and b'"stream":true' in body:
            self._note(json.loads(body)["input_ids"], said)
        return response

    def _note(self, input_ids: list[int], said: bytes) -> None:
        events = [json.loads(event[6:]) for event in said.split(b"\n\n") if event.startswith(b"data: {")]
        if not events or (events[-1]["meta_info"]["finish_reason"] or {"type": "abort"})["type"] == "abort":
            return
        scored = [entry for event in events for entry in event["meta_info"]["output_token_logprobs"]]
        ids = [token for event in events for token in event["output_ids"]]
        logprobs = [entry[0] for entry in scored]
        self.calls.append((input_ids, Generation(output_ids=ids, logprobs=logprobs, versions=[], finish="stop")))


@asynccontextmanager
async def tapped_server(behind: str) -> AsyncIterator[TappedServer]:
    """Serve for the length of the context."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        server = TappedServer(behind, http)
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", server.pass_on)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield server
        finally:
            await runner.cleanup()
