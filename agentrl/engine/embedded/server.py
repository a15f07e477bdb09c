"""The embedded server's HTTP side; `agentrl.engine.embedded` is its command line."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pydantic_core
from aiohttp import web
from aiohttp.typedefs import Handler

from agentrl.engine.embedded.adapters import LoadedAdapters
from agentrl.engine.embedded.batching import BatchingEngine
from agentrl.engine.embedded.requests import (
    AbortBody,
    AdapterBody,
    GenerateBody,
    PauseBody,
    RefusedError,
    UpdateBody,
    check,
    parse,
    reply_of,
    sampling_of,
)
from agentrl.engine.embedded.sampling import Request

T = TypeVar("T")
LIVENESS_CHECK_S = 5.0
"""How often a waiting reply checks that the generation thread is alive."""


class EmbeddedServer:
    """The HTTP face of a `BatchingEngine`."""

    def __init__(self, engine: BatchingEngine, model_path: Path) -> None:
        self._engine = engine
        self._model_path = model_path
        self._requests: dict[str, Request] = {}
        self._control = anyio.CapacityLimiter(1)
        """What waits for the generation thread to be parked does so one after the other, in the order of its requests."""

    def app(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=64 * 2**20, middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/abort_request", self.abort_request),
                web.post("/pause_generation", self.pause_generation),
                web.post("/continue_generation", self.continue_generation),
                web.post("/update_weights_from_disk", self.update_weights_from_disk),
                web.post("/load_lora_adapter", self.load_lora_adapter),
                web.post("/unload_lora_adapter", self.unload_lora_adapter),
                web.get("/health", self.health),
                web.get("/model_info", self.model_info),
                web.get("/server_info", self.server_info),
                web.get("/get_model_info", self.model_info),
            ]
        )
        return app

    async def _in_control_thread(self, call: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(call, limiter=self._control)

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Continue `input_ids`; with `stream`, a server-sent event with what is new as the reply grows.

        Raises:
            RefusedError: The request cannot be answered; the message says why.
        """
        body = await parse(http, GenerateBody)
        check(body, self._engine)
        if body.rid in self._requests:
            raise RefusedError(f"Duplicate request ID detected: {body.rid}")
        rid = body.rid or uuid.uuid4().hex
        changed = asyncio.Event()
        request = Request(
            body.input_ids,
            sampling_of(body, self._engine),
            partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set),
            body.sampling_params.stream_interval if body.stream else 0,
            body.lora_path,
        )
        if body.sampling_params.max_new_tokens == 0:
            return await self._score(body, request, rid)
        self._requests[rid] = request
        try:
            self._engine.submit(request)
            if body.stream:
                return await self._stream(http, body, rid, request, changed)
            while request.finish is None:
                await self._change(changed)
            return _json(reply_of(body, request, self._engine, rid))
        finally:
            self._engine.abort(request)  # does nothing to a request that ended
            del self._requests[rid]

    async def _stream(
        self, http: web.Request, body: GenerateBody, rid: str, request: Request, changed: asyncio.Event
    ) -> web.StreamResponse:
        """Send a reply as it grows, an event every `stream_interval` tokens and one at its end."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionResetError):  # the client is gone
            await response.prepare(http)
            sent, finish = 0, None
            while finish is None:
                await self._change(changed)
                state = reply_of(body, request, self._engine, rid, sent)
                sent, finish = state["meta_info"]["completion_tokens"], state["meta_info"]["finish_reason"]
                await response.write(b"data: " + pydantic_core.to_json(state) + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _score(self, body: GenerateBody, request: Request, rid: str) -> web.Response:
        """Answer with logprobs of the prompt itself, at temperature 1: from `logprob_start_len` on, each given all before it.

        Raises:
            RefusedError: The adapter is not loaded any more.
        """
        request.finish = {"type": "length", "length": 0}
        state, start = reply_of(body, request, self._engine, rid), body.logprob_start_len
        if start >= 0:
            try:
                logprobs = await self._in_control_thread(lambda: self._engine.score(body.input_ids, body.lora_path))
            except ValueError as error:
                raise RefusedError(str(error)) from None
            scored = [[logprob, token, None] for logprob, token in zip(logprobs, body.input_ids, strict=True)]
            state["meta_info"]["input_token_logprobs"] = scored[start:]
        return _json(state)

    async def _change(self, changed: asyncio.Event) -> None:
        """Wait until the generation thread has something new.

        Raises:
            HTTPInternalServerError: The thread is dead.
        """
        while not changed.is_set():
            with anyio.move_on_after(LIVENESS_CHECK_S):
                await changed.wait()
            if not self._engine.alive:
                raise web.HTTPInternalServerError(text="the generation thread died; see the server's log")
        changed.clear()

    async def abort_request(self, http: web.Request) -> web.Response:
        """End one request, or all; each answers with what it has and `finish_reason.type == "abort"`."""
        body = await parse(http, AbortBody)
        for rid, request in self._requests.items():
            if body.abort_all or rid == body.rid:
                self._engine.abort(request)
        return web.Response()

    async def pause_generation(self, http: web.Request) -> web.Response:
        """Stop producing tokens until `/continue_generation`."""
        body = await parse(http, PauseBody)
        await self._in_control_thread(lambda: self._engine.pause(body.mode))
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, http: web.Request) -> web.Response:
        """Produce tokens again."""
        await self._in_control_thread(self._engine.resume)
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weights_from_disk(self, http: web.Request) -> web.Response:
        """Load the safetensors of `model_path`, under `weight_version`."""
        body = await parse(http, UpdateBody)
        path, load = Path(body.model_path), self._engine.load_weights
        try:
            await self._in_control_thread(lambda: load(path, body.weight_version, flush_cache=body.flush_cache))
        except (OSError, ValueError) as error:
            return _json({"success": False, "message": str(error)}, status=400)
        self._model_path = path
        message = f"Succeeded to update model weights. Weight version updated to {self._engine.version}."
        return _json({"success": True, "message": message})

    async def load_lora_adapter(self, http: web.Request) -> web.Response:
        """Compute with the LoRA adapter in `lora_path` from now on, for requests that name it by `lora_name`."""
        body = await parse(http, AdapterBody)
        return await self._change_adapters(lambda adapters: adapters.load(body.lora_name, Path(body.lora_path)))

    async def unload_lora_adapter(self, http: web.Request) -> web.Response:
        """Forget an adapter."""
        body = await parse(http, AdapterBody)
        return await self._change_adapters(lambda adapters: adapters.unload(body.lora_name))

    async def _change_adapters(self, change: Callable[[LoadedAdapters], None]) -> web.Response:
        message = ""
        try:
            await self._in_control_thread(lambda: self._engine.change_adapters(change))
        except (ImportError, OSError, ValueError) as error:
            message = str(error)
        content = {"success": not message, "error_message": message, "loaded_adapters": self._engine.adapters.names}
        return _json(content, status=400 if message else 200)

    async def health(self, http: web.Request) -> web.Response:
        """200 while the generation thread runs."""
        return web.Response(status=200 if self._engine.alive else 503)

    async def model_info(self, http: web.Request) -> web.Response:
        """Return what is served, and under which weight version."""
        return _json(
            {
                "model_path": str(self._model_path),
                "is_generation": True,
                "weight_version": self._engine.version,
            }
        )

    async def server_info(self, http: web.Request) -> web.Response:
        """Return how the server was started, and which prompts are too long for it: those of `max_req_input_len` tokens and more."""
        return _json(
            {
                "incremental_streaming_output": True,
                "grammar_backend": "none",
                "max_req_input_len": self._engine.context_length,
            }
        )


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as error:
        return _json({"error": {"message": str(error)}}, status=400)


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=pydantic_core.to_json(content), status=status, content_type="application/json")


async def serve(engine: BatchingEngine, args: argparse.Namespace) -> None:
    """Serve an engine until SIGTERM, SIGINT, or, with `--exit-with-stdin`, until standard input closes."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def watch_stdin() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(stop.set)

    app = EmbeddedServer(engine, args.model_path).app()
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1, access_log=None)
    engine.start()
    try:
        await runner.setup()
        await web.TCPSite(runner, args.host, args.port).start()
        print(f"listening on {runner.addresses[0][1]}", flush=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if args.exit_with_stdin:
            threading.Thread(target=watch_stdin, daemon=True).start()
        await stop.wait()
    finally:
        await runner.cleanup()
        engine.stop()
