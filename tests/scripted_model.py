"""An OpenAI endpoint on the loopback that says what a test wants to hear: for what a workflow does with a good reply, which the
nano model never gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Script = Callable[[list[dict[str, Any]]], str | dict[str, Any] | int]
"""From the messages to the reply: its text, or the whole message; or the HTTP status of a refusal."""


@asynccontextmanager
async def scripted_model(script: Script) -> AsyncIterator[str]:
    """The base URL of the endpoint."""

    async def chat(request: web.Request) -> web.Response:
        reply = script((await request.json())["messages"])
        if isinstance(reply, int):
            refusal = {"error": {"message": "refused"}}
            return web.json_response(refusal, status=reply, headers={"retry-after-ms": "10"})
        message = {"role": "assistant", **(reply if isinstance(reply, dict) else {"content": reply})}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        content = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}
        return web.json_response(content)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()


def tool_call(name: str, arguments: str) -> dict[str, Any]:
    """A message that calls a tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"content": None, "tool_calls": [call]}
