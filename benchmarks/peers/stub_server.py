"""A server in a process of its own that every program beside agentrl can call: the same tool call in every reply, after a wait.

It speaks chat completions, with token ids and logprobs as vLLM adds them, and what agentrl asks of an SGLang server.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from agentrl.models import NANO
from agentrl.proxy import load_chat_format
from agentrl.system.this_process import raise_file_limit

MODEL = "nano"
CALL = {"name": "add", "arguments": {"a": 20, "b": 22}}
PROMPT_TOKENS = 100


def reply_ids() -> list[int]:
    """Return the tokens of the tool call in the nano model's own words, its end included."""
    text = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
    return [*load_chat_format(NANO).tokenizer.encode(text, add_special_tokens=False), 2]


def completion(ids: list[int]) -> dict[str, Any]:
    """Return a chat completion with the tool call, and with what a recorder looks for."""
    function = {"name": CALL["name"], "arguments": json.dumps(CALL["arguments"])}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    logprobs: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in ids
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "prompt_token_ids": list(range(PROMPT_TOKENS)),
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls",
                "token_ids": ids,
                "logprobs": {"content": logprobs, "refusal": None},
            }
        ],
        "usage": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": len(ids),
            "total_tokens": PROMPT_TOKENS + len(ids),
        },
    }


def generation(ids: list[int], prompt_tokens: int) -> dict[str, Any]:
    """Return the same reply in SGLang's words."""
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 2} if ids[-1] == 2 else {"type": "length", "length": len(ids)},
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ids),
            "weight_version": "0",
            "weight_versions": [{"version": "0", "start": 0, "end": len(ids)}],
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        },
    }


def serve(delay_s: float) -> None:
    """Be the server, until standard input closes. `GET /calls` counts the replies that were asked for."""
    raise_file_limit()
    ids = reply_ids()
    chat = json.dumps(completion(ids)).encode()
    calls = 0

    async def complete(http: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        await http.read()
        await asyncio.sleep(delay_s)
        return web.Response(body=chat, content_type="application/json")

    async def generate(http: web.Request) -> web.Response:
        nonlocal calls
        asked = json.loads(await http.read())
        calls += 1
        length = asked["sampling_params"].get("max_new_tokens", len(ids))
        state = json.dumps(generation(ids[:length], len(asked["input_ids"])))
        await asyncio.sleep(delay_s)
        if asked.get("stream"):
            return web.Response(text=f"data: {state}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        return web.Response(text=state, content_type="application/json")

    async def count(_: web.Request) -> web.Response:
        return web.json_response(calls)

    async def describe(_: web.Request) -> web.Response:
        return web.json_response({"weight_version": "0", "object": "list", "data": [{"id": MODEL, "object": "model"}]})

    app = web.Application(client_max_size=2**30)
    app.add_routes([web.get(path, describe) for path in ("/model_info", "/server_info", "/health", "/v1/models")])
    app.add_routes([web.post("/v1/chat/completions", complete), web.post("/generate", generate)])
    app.add_routes([web.post("/abort_request", describe), web.get("/calls", count)])
    with socket.create_server(("127.0.0.1", 0), backlog=16384) as listener:
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        web.run_app(app, sock=listener, print=None, access_log=None, backlog=16384)


@contextmanager
def stub_server(delay_s: float) -> Iterator[str]:
    """Run the server for the length of the context, which yields its URL."""
    command = [sys.executable, "-c", f"import stub_server; stub_server.serve({delay_s})"]
    folder = Path(__file__).parent
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()
