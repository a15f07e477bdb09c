"""One SGLang server as its HTTP API shows it: replies that grow, and control calls.

Two things can go wrong, and they are told apart. A server that *refuses* (EngineError) is alive, and so would the next one
refuse. A server that is *lost* (ServerLostError) cannot be reached, broke off, or went silent: what it had said so far is in
`ServerLostError.partial`, for another server to go on from.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import pydantic_core

from agentrl.engine.protocol import Generation, ImageSpan, Sampling, VersionSpan
from agentrl.errors import EngineError

STREAM_INTERVAL_TOKENS = 32
"""How many tokens a server may gather before it sends them. A killed server loses at most so many of each reply, and
they are sampled again. That costs a server 5 % of its speed, asking for segments of as many a quarter
(`benchmarks/partial_replies.py`)."""
STREAM_STATES = 64
"""Where a server sends the whole reply again with every state, so many states of a long reply bound what that costs."""
CLOSE_TIMEOUT_S = 2.0


class ServerLostError(EngineError):
    """A server cannot be reached any more. `partial` is what it said of a reply before."""

    def __init__(self, message: str, partial: Generation | None = None) -> None:
        super().__init__(message)
        self.partial = partial


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as servers know it. They report the version of the model under it alone: what an adapter makes has its."""

    name: str
    version: int


class SGLangServer:
    """A server at `url`. What it can do is found out by `probe`."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self.url = url.rstrip("/")
        self.in_flight = 0
        self.serving = False
        self.reports_spans = True
        """False for SGLang before weight versions had spans: then only mode `abort` says which weights made a token."""
        self.has_grammar = False
        """Whether it can hold a reply to a JSON schema."""
        self.takes_images = False
        self.ranks = 1
        """Processes that hold a part of the weights each."""
        self._incremental = False
        self._takes_interval = True
        self._requests: set[anyio.CancelScope] = set()

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")

    async def probe(self, timeout_s: float) -> int:
        """Generate one token to learn what the server reports. Returns the weight version that it serves."""
        info = await self.get("/server_info", timeout_s, missing_ok=True)
        self._incremental = bool(info.get("incremental_streaming_output"))
        self.ranks = int(info.get("tp_size", 1)) * int(info.get("pp_size", 1))
        self.has_grammar = info.get("grammar_backend", "none") not in ("none", None)
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}, "return_logprob": True}
        try:
            reply = await self.post("/generate", {**body, "sampling_params": {"stream_interval": 1, **_ONE}}, timeout_s)
        except ServerLostError:
            raise
        except EngineError:
            self._takes_interval = False
            reply = await self.post("/generate", body, timeout_s)
        self.reports_spans = "weight_versions" in reply["meta_info"]
        model = await self.get("/model_info", timeout_s)
        self.takes_images = bool(model.get("has_image_understanding"))
        return _version(model.get("weight_version"))

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        *,
        session: str,
        images: Sequence[ImageSpan],
        adapter: Adapter | None,
        on_ids: Callable[[list[int]], None] | None,
        watch: Callable[[Callable[[], Generation]], None],
    ) -> Generation:
        """One reply, or its beginning with `finish="abort"`. `watch` gets a function that says what it has so far. Raises
        ServerLostError with the beginning, EngineError."""
        rid = uuid.uuid4().hex
        body = {
            "rid": rid,
            "session_id": session,
            "input_ids": _with_single_placeholders(input_ids, images),
            "sampling_params": self._params(sampling, watched=on_ids is not None),
            "return_logprob": True,
            "stream": True,
        }
        if sampling.top_logprobs:
            body["top_logprobs_num"] = sampling.top_logprobs
        if images:
            body["image_data"] = [image.url for image in images]
        if adapter is not None:
            body["lora_path"] = adapter.name
        reply = _GrowingReply(self._incremental, len(input_ids), None if adapter is None else adapter.version)
        watch(reply.so_far)
        self.in_flight += 1
        try:
            with anyio.CancelScope() as scope:
                self._requests.add(scope)
                await self._stream(body, reply, on_ids)
            if scope.cancelled_caught:
                raise ServerLostError(f"{self.url} was taken out of service", reply.so_far())
            return reply.finished(self.url)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_TIMEOUT_S):
                await self.abort(rid)
            raise
        finally:
            self._requests.discard(scope)
            self.in_flight -= 1

    def drop_requests(self) -> None:
        """Let every open `generate` raise ServerLostError with what it has."""
        for scope in list(self._requests):
            scope.cancel()

    async def abort(self, rid: str) -> None:
        """End one request on the server; nothing if it is lost."""
        with suppress(EngineError):
            await self.post("/abort_request", {"rid": rid}, CLOSE_TIMEOUT_S)

    async def abort_all(self, timeout_s: float) -> None:
        """End all replies with what they have."""
        await self.post("/abort_request", {"abort_all": True}, timeout_s)

    async def load_adapter(self, adapter: Adapter, directory: Path, timeout_s: float) -> None:
        """Have the adapter in `directory` ready for requests. Raises ServerLostError, EngineError."""
        body = {"lora_name": adapter.name, "lora_path": str(directory)}
        reply = await self.post("/load_lora_adapter", body, timeout_s, any_status=True)
        if not reply.get("success"):
            reason = reply.get("error_message") or reply
            remedy = (
                "; start it with --enable-lora, --max-lora-rank and --lora-target-modules"
                if "not enabled" in str(reason)
                else ""
            )
            raise EngineError(f"{self.url} could not load the adapter {directory}: {reason}{remedy}")

    async def unload_adapter(self, adapter: Adapter, timeout_s: float) -> None:
        """Forget the adapter, if the server knows it."""
        await self.post("/unload_lora_adapter", {"lora_name": adapter.name}, timeout_s, any_status=True)

    def _params(self, sampling: Sampling, *, watched: bool) -> dict[str, Any]:
        params: dict[str, Any] = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "skip_special_tokens": False,
        }
        if sampling.stop:
            params["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            params["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.seed is not None:
            params["sampling_seed"] = sampling.seed
        if sampling.json_schema is not None:
            params["json_schema"] = sampling.json_schema
        if self._takes_interval:
            long = 0 if self._incremental else sampling.max_new_tokens // STREAM_STATES
            params["stream_interval"] = 1 if watched else max(STREAM_INTERVAL_TOKENS, long)
        return params

    async def _stream(
        self, body: dict[str, Any], reply: _GrowingReply, on_ids: Callable[[list[int]], None] | None
    ) -> None:
        try:
            async with self._http.post(
                f"{self.url}/generate", data=pydantic_core.to_json(body), headers=_JSON
            ) as response:
                if response.status != 200:
                    raise EngineError(_refusal(self.url, "/generate", response.status, await response.read()))
                async for event in _events(response.content):
                    reply.grow(event, self.url)
                    if on_ids is not None:
                        on_ids(reply.output_ids)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServerLostError(f"{self.url}/generate broke off: {error!r}", reply.so_far()) from error

    async def post(
        self, path: str, body: dict[str, Any], timeout_s: float, *, any_status: bool = False
    ) -> dict[str, Any]:
        """The JSON of a reply with status 200, or with any. Raises ServerLostError, EngineError."""
        data = pydantic_core.to_json(body)
        return await self._ask("POST", path, timeout_s, any_status=any_status, data=data, headers=_JSON)

    async def get(self, path: str, timeout_s: float, *, missing_ok: bool = False) -> dict[str, Any]:
        """The same for GET. `missing_ok`: an unknown path answers with {}."""
        return await self._ask("GET", path, timeout_s, missing_ok=missing_ok)

    async def _ask(
        self,
        method: str,
        path: str,
        timeout_s: float,
        *,
        missing_ok: bool = False,
        any_status: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        try:
            with anyio.fail_after(timeout_s):
                async with self._http.request(method, self.url + path, **options) as response:
                    content = await response.read()
        except TimeoutError:
            raise ServerLostError(f"{self.url}{path} did not answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerLostError(f"{self.url}{path} cannot be reached or broke off: {error!r}") from error
        if missing_ok and response.status == 404:
            return {}
        if response.status != 200 and not any_status:
            raise EngineError(_refusal(self.url, path, response.status, content))
        try:
            reply: dict[str, Any] = pydantic_core.from_json(content) if content else {}
        except ValueError as error:
            raise EngineError(f"{self.url}{path} answered {content[:200]!r}, which is not JSON") from error
        return reply


def _with_single_placeholders(input_ids: list[int], images: Sequence[ImageSpan]) -> list[int]:
    """SGLang wants one id where an image is, and makes the image's many of it."""
    ids, end = [], 0
    for image in images:
        ids += input_ids[end : image.start + 1]
        end = image.start + image.length
    return ids + input_ids[end:]


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events, however long."""
    pieces: list[bytes] = []
    async for data in content.iter_any():
        *complete, rest = data.split(b"\n\n")
        for end in complete:
            event = b"".join([*pieces, end])
            pieces = []
            if event.startswith(b"data: {"):
                yield pydantic_core.from_json(event[6:])
        pieces.append(rest)


_JSON = {"Content-Type": "application/json"}
_ONE = {"max_new_tokens": 1}


class _GrowingReply:
    """What a server has streamed of one reply.

    SGLang reports which weights made which tokens with the last state of a reply alone. Until then, each state names the
    version served when it was sent. Where that changes between two states, the tokens between them may be of either: what
    is sure of an unfinished reply ends there. With `version`, that made all of it, whatever the server says.
    """

    def __init__(self, incremental: bool, prompt_tokens: int, version: int | None) -> None:
        self._incremental = incremental
        self._prompt_tokens = prompt_tokens
        self.output_ids: list[int] = []
        self._scored: list[list[Any]] = []
        self._top: list[list[list[Any]]] = []
        self._meta: dict[str, Any] = {}
        self._fixed = version is not None
        self._version = version
        self._sure = 0
        self._reported: list[VersionSpan] | None = None

    def grow(self, state: dict[str, Any], url: str) -> None:
        """Take the server's next state in. Raises EngineError when it is an error."""
        if "meta_info" not in state:
            raise EngineError(f"{url} gave the request up: {state.get('error', state)}")
        meta = state["meta_info"]
        if meta.get("prompt_tokens", self._prompt_tokens) != self._prompt_tokens:
            raise EngineError(
                f"{url} made {meta['prompt_tokens']} tokens of a prompt of {self._prompt_tokens}: it prepares images "
                "otherwise than the model's renderer"
            )
        ids, scored = state.get("output_ids", []), meta.get("output_token_logprobs") or []
        top = meta.get("output_top_logprobs") or []
        if self._incremental:
            ids, scored, top = self.output_ids + ids, self._scored + scored, self._top + top
        if len(ids) >= len(self.output_ids):
            self.output_ids, self._scored, self._top = ids, scored, top
        self._meta = meta
        version = self._version if self._fixed else _version(meta.get("weight_version"))
        if "weight_versions" in meta and not self._fixed:
            self._reported = [
                VersionSpan(_version(s["version"]), s["start"], s["end"]) for s in meta["weight_versions"]
            ]
        elif self._version is None or version == self._version:
            self._version, self._sure = version, len(self.output_ids)

    def so_far(self) -> Generation:
        """The tokens that have come and are sure, to be gone on from. One that has ended says so with its `finish`."""
        finish = self._meta.get("finish_reason")
        if finish is not None and finish["type"] in ("stop", "length") and len(self._scored) == len(self.output_ids):
            spans = self._reported
            if spans is None and self._sure == len(self.output_ids):
                spans = [VersionSpan(self._version or 0, 0, self._sure)]
            if spans is not None:
                return self._generation(spans, len(self.output_ids), finish["type"])
        spans = self._reported
        if spans is None:
            spans = [VersionSpan(self._version or 0, 0, self._sure)]
        return self._generation(spans, min(len(self._scored), spans[-1].end if spans else 0), "abort")

    def finished(self, url: str) -> Generation:
        """The whole reply. Raises ServerLostError if it is not whole, EngineError if the server gave it up."""
        finish = self._meta.get("finish_reason")
        if finish is None:
            raise ServerLostError(f"{url} closed the stream before the reply ended", self.so_far())
        if finish.get("status_code"):
            raise EngineError(f"{url} gave the request up: {finish.get('message')}")
        if [token for _, token, _ in self._scored] != self.output_ids:
            raise EngineError(f"{url} returned {len(self.output_ids)} tokens but the logprobs of {len(self._scored)}")
        spans = self._reported
        if spans is None and self._sure < len(self.output_ids):
            raise EngineError(
                f"{url} changed its weights during a reply and does not say where; only pause mode abort suits it"
            )
        if spans is None:
            # Older SGLang: its updates end requests, so one version made all tokens of this one.
            spans = [VersionSpan(self._version or 0, 0, len(self.output_ids))]
        return self._generation(spans, len(self.output_ids), finish["type"])

    def _generation(self, spans: list[VersionSpan], count: int, finish: Any) -> Generation:
        return Generation(
            output_ids=self.output_ids[:count],
            logprobs=[logprob for logprob, _, _ in self._scored[:count]],
            versions=[VersionSpan(s.version, s.start, min(s.end, count)) for s in spans if s.start < min(s.end, count)],
            finish=finish,
            cached_tokens=self._meta.get("cached_tokens", 0),
            top_logprobs=[[(lp, token) for lp, token, _ in top] for top in self._top[:count]],
        )


def _version(reported: object) -> int:
    """SGLang calls the weights that it started with "default"."""
    return int(str(reported)) if str(reported).isdigit() else 0


def _refusal(url: str, path: str, status: int, content: bytes) -> str:
    return f"{url}{path} answered {status}: {content[:500].decode(errors='replace')}"
