"""The embedded server's HTTP side; `agentrl.engine.embedded` is its command line."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pydantic_core
from aiohttp import web
from aiohttp.typedefs import Handler

from agentrl.engine.embedded.adapter_slots import AdapterSlots
from agentrl.engine.embedded.continuous_batching import BatchingEngine
from agentrl.engine.embedded.request_sampler import Request
from agentrl.engine.embedded.requests import (
    AbortBody,
    AdapterBody,
    GenerateBody,
    PauseBody,
    RefusedError,
    UpdateBody,
    parse,
)
from agentrl.engine.protocol import Sampling

T = TypeVar("T")
LIVENESS_CHECK_S = 5.0
"""How often a waiting reply checks that the generation loop is alive."""


class EmbeddedServer:
    """The HTTP face of a `BatchingEngine`, or of several with an adapter each."""

    def __init__(self, slots: AdapterSlots, model_path: Path, *, incremental: bool) -> None:
        self._slots = slots
        self._model = slots.model
        self._incremental = incremental
        self._model_path = model_path
        self._requests: dict[str, tuple[BatchingEngine, Request]] = {}
        # transformers counts pauses by thread, so one thread makes them all.
        self._control = ThreadPoolExecutor(1, thread_name_prefix="control")

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
        return await asyncio.get_running_loop().run_in_executor(self._control, call)

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Continue `input_ids`; with `stream`, a server-sent event with everything so far as the reply grows.

        Raises:
            RefusedError: The request cannot be answered; the message says why.
        """
        body = await parse(http, GenerateBody)
        found = self._check(body)
        if body.sampling_params.max_new_tokens == 0:
            return await self._score(body, found)
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        sampling = self._sampling(body)
        request = Request(body.input_ids, sampling, lambda: _notify(loop, changed), body.stream)
        rid = body.rid or uuid.uuid4().hex
        engine = found or self._model
        self._requests[rid] = engine, request
        try:
            started = time.perf_counter()
            engine.submit(request)
            if body.lora_path != engine.adapter:  # one that is loaded no more
                engine.abort(request)
            if body.stream:
                return await self._stream(http, body, rid, request, started, changed)
            while request.finish is None:
                await self._change(changed)
            return _json(self._reply(rid, body, request, started, 0, len(request.output_ids)))
        finally:
            engine.abort(request)  # does nothing to a request that ended
            del self._requests[rid]

    def _check(self, body: GenerateBody) -> BatchingEngine | None:
        """Refuse what cannot be answered, in SGLang's words where it has them, and return what answers the rest.

        Raises:
            RefusedError: The message says why.
        """
        vocabulary = self._model.vocabulary
        if len(body.input_ids) >= self._model.context_length:
            raise RefusedError(
                f"The input ({len(body.input_ids)} tokens) is longer than the model's context length "
                f"({self._model.context_length} tokens)."
            )
        if outside := [token for token in body.input_ids if not 0 <= token < vocabulary]:
            raise RefusedError(f"input_ids holds {outside[0]}, outside the vocabulary of {vocabulary} tokens.")
        if strange := [token for token in body.sampling_params.logit_bias or () if not 0 <= token < vocabulary]:
            raise RefusedError(f"logit_bias must has keys in [0, {vocabulary - 1}], got {strange[0]}.")
        if body.sampling_params.max_new_tokens > 0 and body.logprob_start_len >= 0:
            raise RefusedError("logprob_start_len is for max_new_tokens = 0 here: a prompt is scored or continued.")
        if body.rid in self._requests:
            raise RefusedError(f"Duplicate request ID detected: {body.rid}")
        return self._slots.engine_for(body.lora_path)

    async def _stream(
        self, http: web.Request, body: GenerateBody, rid: str, request: Request, started: float, changed: asyncio.Event
    ) -> web.StreamResponse:
        """Send a reply as it grows, an event every `stream_interval` tokens and one at its end."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionResetError):  # whoever asked is gone
            await response.prepare(http)
            finished, sent = False, 0
            while not finished:
                await self._change(changed)
                finished, count = request.finish is not None, len(request.output_ids)
                if not finished and sent and count - sent < body.sampling_params.stream_interval:
                    continue
                start = sent if self._incremental else 0
                state = self._reply(rid, body, request, started, start, count, finished=finished)
                sent = count
                await response.write(b"data: " + pydantic_core.to_json(state) + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _score(self, body: GenerateBody, engine: BatchingEngine | None) -> web.Response:
        """Answer with logprobs of the prompt itself, at temperature 1: from `logprob_start_len` on, each given all before it.

        Raises:
            RefusedError: The adapter is not loaded any more.
        """
        start = body.logprob_start_len

        def score() -> list[float | None]:  # in the thread that loads adapters, so that it is the right one to its end
            if engine is None or engine.adapter != body.lora_path:
                raise RefusedError(f"The adapter {body.lora_path} is not loaded any more.")
            return engine.score(body.input_ids) if start >= 0 else []

        logprobs = await self._in_control_thread(score)
        meta: dict[str, Any] = {
            "id": body.rid or uuid.uuid4().hex,
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": len(body.input_ids),
            "completion_tokens": 0,
            "weight_version": self._model.version,
            "weight_versions": [{"version": self._model.version, "start": 0, "end": 0}],
        }
        if body.return_logprob:
            scored = [[logprob, token, None] for logprob, token in zip(logprobs, body.input_ids, strict=False)]
            meta |= {"input_token_logprobs": scored[start:] if start >= 0 else [], "output_token_logprobs": []}
        return _json({"text": "", "output_ids": [], "meta_info": meta})

    async def _change(self, changed: asyncio.Event) -> None:
        """Wait until the generation thread has something new.

        Raises:
            HTTPInternalServerError: The thread is dead.
        """
        while not changed.is_set():
            try:
                await asyncio.wait_for(changed.wait(), LIVENESS_CHECK_S)
            except TimeoutError:
                if not self._slots.alive:
                    raise web.HTTPInternalServerError(text="the generation loop died; see the server's log") from None
        changed.clear()

    def _sampling(self, body: GenerateBody) -> Sampling:
        params = body.sampling_params
        room = self._model.context_length - len(body.input_ids)
        stop_ids = [] if params.ignore_eos else [*self._model.end_ids, *(params.stop_token_ids or [])]
        return Sampling(
            max_new_tokens=min(params.max_new_tokens, room),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            logit_bias=list((params.logit_bias or {}).items()),
            stop=[params.stop] if isinstance(params.stop, str) else params.stop or [],
            stop_token_ids=stop_ids,
            seed=params.sampling_seed,
            top_logprobs=body.top_logprobs_num if body.return_logprob else 0,
        )

    def _reply(
        self,
        rid: str,
        body: GenerateBody,
        request: Request,
        started: float,
        start: int,
        count: int,
        *,
        finished: bool = True,
    ) -> dict[str, Any]:
        """Return the reply's state when it had `count` tokens; of these, those from `start` on.

        The generation thread goes on meanwhile, so that what was `finished` and counted before is what is told.
        """
        finish = request.finish if finished else None
        ids = request.output_ids[start:count]
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": finish,
            "prompt_tokens": len(request.input_ids),
            "completion_tokens": count,
            "weight_version": request.version_starts[-1][0] if request.version_starts else self._model.version,
            "weight_versions": request.weight_versions(count),
            "e2e_latency": time.perf_counter() - started,
        }
        if body.return_logprob:
            scored = zip(request.logprobs[start:count], ids, strict=True)
            meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in scored]
        if body.return_logprob and body.top_logprobs_num:
            meta["output_top_logprobs"] = [
                [[logprob, token, None] for logprob, token in top] for top in request.top_logprobs[start:count]
            ]
        text = str(self._model.tokenizer.decode(ids, skip_special_tokens=body.sampling_params.skip_special_tokens))
        if finish is not None and isinstance(matched := finish.get("matched"), str):
            text = text.partition(matched)[0]
        return {"text": text, "output_ids": ids, "meta_info": meta}

    async def abort_request(self, http: web.Request) -> web.Response:
        """End one request, or all; each answers with what it has and `finish_reason.type == "abort"`."""
        body = await parse(http, AbortBody)
        for rid, (engine, request) in list(self._requests.items()):
            if body.abort_all or rid == body.rid:
                engine.abort(request)
        return web.Response()

    async def pause_generation(self, http: web.Request) -> web.Response:
        """Stop producing tokens until `/continue_generation`."""
        body = await parse(http, PauseBody)
        await self._in_control_thread(lambda: self._slots.pause(body.mode))
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, http: web.Request) -> web.Response:
        """Produce tokens again."""
        await self._in_control_thread(self._slots.resume)
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weights_from_disk(self, http: web.Request) -> web.Response:
        """Load the safetensors of `model_path`, under `weight_version`."""
        body = await parse(http, UpdateBody)
        if body.abort_all_requests:
            for engine, request in list(self._requests.values()):
                engine.abort(request)
        waiting = self._slots.running

        def load() -> None:
            self._slots.load_weights(Path(body.model_path), body.weight_version, flush_cache=body.flush_cache)

        try:
            await self._in_control_thread(load)
        except (OSError, ValueError) as error:
            return _json({"success": False, "message": str(error), "num_paused_requests": 0}, status=400)
        self._model_path = Path(body.model_path)
        message = f"Succeeded to update model weights. Weight version updated to {self._model.version}."
        return _json({"success": True, "message": message, "num_paused_requests": waiting})

    async def load_lora_adapter(self, http: web.Request) -> web.Response:
        """Compute with the LoRA adapter in `lora_path` from now on, for requests that name it by `lora_name`."""
        body = await parse(http, AdapterBody)
        try:
            await self._in_control_thread(lambda: self._slots.load_adapter(body.lora_name, Path(body.lora_path)))
        except (ImportError, OSError, ValueError) as error:
            return self._adapter_reply(str(error))
        return self._adapter_reply()

    async def unload_lora_adapter(self, http: web.Request) -> web.Response:
        """Forget an adapter."""
        body = await parse(http, AdapterBody)
        try:
            await self._in_control_thread(lambda: self._slots.unload_adapter(body.lora_name))
        except ValueError as error:
            return self._adapter_reply(str(error))
        return self._adapter_reply()

    def _adapter_reply(self, error: str = "") -> web.Response:
        answer = {"success": not error, "error_message": error, "loaded_adapters": self._slots.names}
        return _json(answer, status=400 if error else 200)

    async def health(self, http: web.Request) -> web.Response:
        """200 while every generation loop runs."""
        return web.Response(status=200 if self._slots.alive else 503)

    async def model_info(self, http: web.Request) -> web.Response:
        """Return what is served, and under which weight version."""
        return _json(
            {
                "model_path": str(self._model_path),
                "tokenizer_path": str(self._model_path),
                "is_generation": True,
                "weight_version": self._model.version,
                "model_type": self._model.model.config.model_type,
                "architectures": self._model.model.config.architectures,
            }
        )

    async def server_info(self, http: web.Request) -> web.Response:
        """Return how the server was started, and which prompts are too long for it: those of `max_req_input_len` tokens and more."""
        return _json(
            {
                "incremental_streaming_output": self._incremental,
                "stream_interval": 1,
                "grammar_backend": "none",
                "max_req_input_len": self._model.context_length,
            }
        )

    def close(self) -> None:
        """Stop the engine."""
        self._control.submit(self._slots.stop).result(timeout=15)
        self._control.shutdown()


def _notify(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    loop.call_soon_threadsafe(changed.set)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as error:
        return _json({"error": {"message": str(error)}}, status=400)


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=pydantic_core.to_json(content), status=status, content_type="application/json")


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM, SIGINT, or, with `--exit-with-stdin`, until standard input closes."""
    slots = AdapterSlots(
        args.model_path, dtype=args.dtype, max_total_tokens=args.max_total_tokens, count=args.max_loaded_loras
    )
    engine_server = EmbeddedServer(slots, args.model_path, incremental=args.incremental_streaming_output)
    runner = web.AppRunner(engine_server.app(), handler_cancellation=True, shutdown_timeout=1, access_log=None)
    await engine_server._in_control_thread(slots.start)
    try:
        await _serve_until_stopped(runner, args)
    finally:  # also when whoever started this is gone before it listens: generation has a thread that would live on
        await runner.cleanup()
        engine_server.close()


async def _serve_until_stopped(runner: web.AppRunner, args: argparse.Namespace) -> None:
    await runner.setup()
    site = web.TCPSite(runner, args.host, args.port)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    print(f"listening on {port}", flush=True)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if args.exit_with_stdin:

        def watch_stdin() -> None:
            sys.stdin.buffer.read()
            loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=watch_stdin, daemon=True).start()
    await stop.wait()
