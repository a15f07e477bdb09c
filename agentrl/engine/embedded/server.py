"""The embedded server's HTTP side: the part of SGLang's API that the client of `../client` uses. `__main__.py` is its command line.

    POST /generate ─► GenerateBody ─► Request ─► BatchingEngine ─► what is new of the reply, as it grows or at its end
    POST /pause_generation, /update_weights_from_disk, ... ─► a change of the engine between two forward passes

A field that is not in the bodies here is refused by its name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import uuid
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.engine.embedded.batching import BatchingEngine
from agentrl.engine.embedded.sampling import Request
from agentrl.engine.protocol import PauseMode, Sampling


class Strict(BaseModel):
    """A body that is refused when it holds an unknown field, by the name of that."""

    model_config = ConfigDict(extra="forbid")


class SamplingParams(Strict):
    """The fields of SGLang's `sampling_params` that this server honours."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | Literal[-1] = -1
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    logit_bias: dict[int, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    stop: list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    sampling_seed: int | None = None
    stream_interval: Annotated[int, Field(ge=1)] = 1
    ignore_eos: bool = False
    skip_special_tokens: bool = False
    """Of no effect on ids."""


class GenerateBody(Strict):
    """`POST /generate`."""

    input_ids: Annotated[list[int], Field(min_length=1)]
    sampling_params: SamplingParams = SamplingParams()
    rid: str = Field(default_factory=lambda: uuid.uuid4().hex)
    return_logprob: bool = True
    """They are always returned."""
    top_logprobs_num: Annotated[int, Field(ge=0)] = 0
    lora_path: str | None = None
    extra_key: str | None = None
    """Which requests' prefixes it may share: of no effect, since no weight update leaves a cached prefix behind here."""
    stream: bool = False


class AbortBody(Strict):
    """`POST /abort_request`."""

    rid: str = ""
    abort_all: bool = False


class PauseBody(Strict):
    """`POST /pause_generation`."""

    mode: PauseMode = "abort"


class UpdateBody(Strict):
    """`POST /update_weights_from_disk`, and `/prepare_weights`, which is no call of SGLang's and needs the path alone."""

    model_path: str
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: Literal[False] = False


class AdapterBody(Strict):
    """`POST /load_lora_adapter`, and `/unload_lora_adapter`, which needs the name alone."""

    lora_name: Annotated[str, Field(min_length=1)]
    lora_path: str = ""


Body = TypeVar("Body", bound=Strict)


class RefusedError(web.HTTPBadRequest):
    """A request that cannot be answered; its message goes to the client."""

    def __init__(self, message: str) -> None:
        super().__init__(text=json.dumps({"error": {"message": message}}), content_type="application/json")


class EmbeddedServer:
    """The HTTP face of a `BatchingEngine`."""

    def __init__(self, engine: BatchingEngine, model_path: Path) -> None:
        self._engine = engine
        self._model_path = model_path
        self._requests: dict[str, Request] = {}

    def app(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=64 * 2**20)
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/abort_request", self.abort_request),
                web.post("/pause_generation", self.pause_generation),
                web.post("/continue_generation", self.continue_generation),
                web.post("/prepare_weights", self.prepare_weights),
                web.post("/update_weights_from_disk", self.update_weights_from_disk),
                web.post("/load_lora_adapter", self.load_lora_adapter),
                web.post("/unload_lora_adapter", self.unload_lora_adapter),
                web.get("/health", self.health),
                web.get("/model_info", self.model_info),
                web.get("/server_info", self.server_info),
            ]
        )
        return app

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Continue `input_ids`; with `stream`, a server-sent event with what is new as the reply grows.

        Raises:
            RefusedError: The request cannot be answered; the message says why.
        """
        body = await _parse(http, GenerateBody)
        self._check(body)
        changed = asyncio.Event()
        request = Request(
            body.input_ids,
            self._sampling(body),
            changed.set,
            body.sampling_params.stream_interval if body.stream else 0,
            body.lora_path,
        )
        self._requests[body.rid] = request
        try:
            self._engine.submit(request)
            if body.stream:
                return await self._stream(http, request, changed)
            while request.finish is None:
                await changed.wait()
                changed.clear()
            return _json({"text": self._text(request), **self._state(request, 0)})
        finally:
            self._engine.abort(request)  # does nothing to a request that ended
            del self._requests[body.rid]

    def _check(self, body: GenerateBody) -> None:
        """Check that a request can be answered.

        Raises:
            RefusedError: It cannot; the message says why, in SGLang's words where it has them.
        """
        length, vocabulary = self._engine.context_length, self._engine.vocabulary
        if len(body.input_ids) >= length:
            raise RefusedError(
                f"The input ({len(body.input_ids)} tokens) is longer than the model's context length ({length} tokens)."
            )
        for name, tokens in (("input_ids", body.input_ids), ("logit_bias", body.sampling_params.logit_bias)):
            if outside := [token for token in tokens if not 0 <= token < vocabulary]:
                raise RefusedError(f"{name} holds {outside[0]}, outside the vocabulary of {vocabulary} tokens.")
        if body.lora_path not in (None, *self._engine.adapters.in_model):
            raise RefusedError(f"Got LoRA adapter that is not loaded: {body.lora_path}")
        if body.rid in self._requests:
            raise RefusedError(f"Duplicate request ID detected: {body.rid}")

    def _sampling(self, body: GenerateBody) -> Sampling:
        """Return how a reply is drawn: within the context, and ended as the model ends it."""
        params = body.sampling_params
        same = {"temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"}
        return Sampling(
            **params.model_dump(include={*same, "stop"}),
            max_new_tokens=min(params.max_new_tokens, self._engine.context_length - len(body.input_ids)),
            logit_bias=list(params.logit_bias.items()),
            stop_token_ids=[] if params.ignore_eos else [*self._engine.end_ids, *params.stop_token_ids],
            seed=params.sampling_seed,
            top_logprobs=body.top_logprobs_num,
        )

    async def _stream(self, http: web.Request, request: Request, changed: asyncio.Event) -> web.StreamResponse:
        """Send a reply as it grows, an event every `stream_interval` tokens and one at its end."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionResetError):  # the client is gone
            await response.prepare(http)
            sent, finish = 0, None
            while finish is None:
                await changed.wait()
                changed.clear()
                state = self._state(request, sent)
                sent, finish = state["meta_info"]["completion_tokens"], state["meta_info"]["finish_reason"]
                await response.write(b"data: " + pydantic_core.to_json(state) + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        return response

    def _state(self, request: Request, start: int) -> dict[str, Any]:
        """Return a reply as it is now: its tokens from `start` on."""
        ids = request.output_ids[start:]
        meta: dict[str, Any] = {
            "finish_reason": request.finish,
            "prompt_tokens": len(request.input_ids),
            "completion_tokens": len(request.output_ids),
            "cached_tokens": request.cached_tokens or 0,
            "weight_version": request.version_starts[-1][0] if request.version_starts else self._engine.version,
            "weight_versions": request.weight_versions,
            "output_token_logprobs": _scored(zip(request.logprobs[start:], ids, strict=True)),
        }
        if request.sampling.top_logprobs:
            meta["output_top_logprobs"] = [_scored(top) for top in request.top_logprobs[start:]]
        return {"output_ids": ids, "meta_info": meta}

    def _text(self, request: Request) -> str:
        text = str(self._engine.tokenizer.decode(request.output_ids))
        matched = (request.finish or {}).get("matched")
        return text.partition(matched)[0] if isinstance(matched, str) else text

    async def abort_request(self, http: web.Request) -> web.Response:
        """End one request, or all; each answers with what it has and `finish_reason.type == "abort"`."""
        body = await _parse(http, AbortBody)
        for rid, request in self._requests.items():
            if body.abort_all or rid == body.rid:
                self._engine.abort(request)
        return web.Response()

    async def pause_generation(self, http: web.Request) -> web.Response:
        """Stop producing tokens until `/continue_generation`."""
        body = await _parse(http, PauseBody)
        return await self._change("message", self._engine.pause(body.mode))

    async def continue_generation(self, http: web.Request) -> web.Response:
        """Produce tokens again."""
        return await self._change("message", self._engine.resume())

    async def prepare_weights(self, http: web.Request) -> web.Response:
        """Read the safetensors of `model_path`, for an update that comes next."""
        path = Path((await _parse(http, UpdateBody)).model_path)
        return await self._change("message", self._engine.prepare_weights(path))

    async def update_weights_from_disk(self, http: web.Request) -> web.Response:
        """Load the safetensors of `model_path`, under `weight_version`."""
        body = await _parse(http, UpdateBody)
        path, version = Path(body.model_path), body.weight_version
        loading = self._engine.load_weights(path, version, flush_cache=body.flush_cache)
        return await self._change("message", loading)

    async def load_lora_adapter(self, http: web.Request) -> web.Response:
        """Compute with the LoRA adapter in `lora_path` from now on, for requests that name it by `lora_name`."""
        body = await _parse(http, AdapterBody)
        name, path = body.lora_name, Path(body.lora_path)
        return await self._change("error_message", self._engine.change_adapters(lambda loaded: loaded.load(name, path)))

    async def unload_lora_adapter(self, http: web.Request) -> web.Response:
        """Forget an adapter."""
        name = (await _parse(http, AdapterBody)).lora_name
        return await self._change("error_message", self._engine.change_adapters(lambda loaded: loaded.unload(name)))

    async def _change(self, error_field: str, change: Coroutine[Any, Any, None]) -> web.Response:
        """Make a change to its end, also where the client leaves. Answer status 400 where it is refused: then nothing has changed."""
        try:
            await asyncio.shield(change)
        except (ImportError, OSError, ValueError) as error:
            return _json({"success": False, error_field: str(error)}, status=400)
        return _json({"success": True})

    async def health(self, http: web.Request) -> web.Response:
        """Answer: a process whose engine has failed is not there any more."""
        return web.Response()

    async def model_info(self, http: web.Request) -> web.Response:
        """Return what is served, and under which weight version."""
        version = self._engine.version
        return _json({"model_path": str(self._model_path), "is_generation": True, "weight_version": version})

    async def server_info(self, http: web.Request) -> web.Response:
        """Return how the server was started, and which prompts are too long for it: those of `max_req_input_len` tokens and more."""
        length = self._engine.context_length
        able = {"incremental_streaming_output": True, "prepares_weights": True}
        return _json({**able, "grammar_backend": "none", "max_req_input_len": length})


async def _parse(http: web.Request, model: type[Body]) -> Body:
    """Return the body of a request.

    Raises:
        RefusedError: Fields, which the message names, are wrong.
    """
    try:
        return model.model_validate_json(await http.read() or b"{}")
    except ValidationError as error:
        raise RefusedError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from None


def _scored(tokens: Iterable[tuple[float, int]]) -> list[list[Any]]:
    return [[logprob, token, None] for logprob, token in tokens]


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=pydantic_core.to_json(content), status=status, content_type="application/json")


async def serve(engine: BatchingEngine, args: argparse.Namespace) -> None:
    """Serve an engine until the process ends, which it does where the engine fails: its client starts it again."""
    app = EmbeddedServer(engine, args.model_path).app()
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, args.host, args.port).start()
    print(f"listening on {runner.addresses[0][1]}", flush=True)
    await engine.run()
