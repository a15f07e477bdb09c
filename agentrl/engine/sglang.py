"""The client of SGLang's native HTTP API; it drives real SGLang servers and the embedded one alike.

    generate ─► pick a server (sticky by session) ─► POST /generate ─► stop | length ─► Generation
                    ▲                                      │
                    └── wait for resume ◄── abort: keep the partial ids, resubmit prompt + partial

A weight update in mode `abort` makes the server hand back unfinished replies; the loop above resubmits them, so that the
caller sees one reply. In modes `retract` and `in_place` the server keeps them open and reports the spans itself.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pydantic_core

from agentrl.engine.protocol import Generation, OnProgress, PauseMode, Sampling, VersionSpan
from agentrl.errors import EngineError

CONTROL_TIMEOUT_S = 120.0
"""Bound of pause, resume and weight-update calls."""


class SGLangEngine:
    """One or more SGLang servers that serve the same weights. Open it with `sglang_engine`."""

    def __init__(
        self, http: aiohttp.ClientSession, urls: Sequence[str], request_timeout_s: float, pause_mode: PauseMode
    ) -> None:
        self._http = http
        self._urls = [url.rstrip("/") for url in urls]
        self._request_timeout_s = request_timeout_s
        self._pause_mode = pause_mode
        self._in_flight = dict.fromkeys(self._urls, 0)
        self._sticky: dict[str, str] = {}
        self._version = 0
        self._running = anyio.Event()
        self._running.set()

    @property
    def version(self) -> int:
        """The weight version that serves new tokens."""
        return self._version

    @property
    def in_flight(self) -> int:
        """Replies being generated."""
        return sum(self._in_flight.values())

    async def generate(
        self, input_ids: list[int], sampling: Sampling, session: str, on_progress: OnProgress | None = None
    ) -> Generation:
        """One uninterrupted reply; see `Engine.generate`."""
        done = Generation(output_ids=[], logprobs=[], versions=[], finish="abort")
        with anyio.move_on_after(self._request_timeout_s) as bound:
            while True:
                await self._running.wait()
                url = self._server(session)
                self._in_flight[url] += 1
                try:
                    part = await self._generate_once(url, input_ids, sampling, session, done.output_ids, on_progress)
                finally:
                    self._in_flight[url] -= 1
                done = _join(done, part)
                if done.finish != "abort":
                    return done
                if len(done.output_ids) >= sampling.max_new_tokens:
                    return _join(done, Generation(output_ids=[], logprobs=[], versions=[], finish="length"))
                if self._running.is_set():
                    # Aborted before our pause call returned, or by another client of this server.
                    await anyio.sleep(0.005)
        assert bound.cancelled_caught
        raise EngineError(
            f"no reply within {self._request_timeout_s:g} s ({len(done.output_ids)} tokens so far); is the server "
            "overloaded, or engine.request_timeout_s too small?"
        )

    async def _generate_once(
        self,
        url: str,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        partial: list[int],
        on_progress: OnProgress | None,
    ) -> Generation:
        rid = uuid.uuid4().hex
        params: dict[str, Any] = {
            "max_new_tokens": sampling.max_new_tokens - len(partial),
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
        body = {
            "rid": rid,
            "session_id": session,
            "input_ids": input_ids + partial,
            "sampling_params": params,
            "return_logprob": True,
            "stream": on_progress is not None,
        }
        if sampling.top_logprobs:
            body["top_logprobs_num"] = sampling.top_logprobs
        try:
            if on_progress is None:
                return _generation(await self._post(url, "/generate", body))
            return await self._stream(url, body, lambda ids: on_progress(partial + ids))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                await self._post(url, "/abort_request", {"rid": rid})
            raise

    async def _stream(self, url: str, body: dict[str, Any], on_ids: Callable[[list[int]], None]) -> Generation:
        last: dict[str, Any] = {}
        try:
            async with self._http.post(f"{url}/generate", data=pydantic_core.to_json(body), headers=_JSON) as response:
                if response.status != 200:
                    raise EngineError(_refusal(url, "/generate", response.status, await response.read()))
                async for line in response.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        last = pydantic_core.from_json(line[6:])
                        on_ids(last["output_ids"])
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineError(f"{url}/generate broke off: {error!r}") from error
        return _generation(last)

    def _server(self, session: str) -> str:
        if len(self._urls) == 1:
            return self._urls[0]
        url = self._sticky.get(session)
        if url is None:
            url = self._sticky[session] = min(self._urls, key=lambda u: self._in_flight[u])
        return url

    def end_session(self, session: str) -> None:
        """Forget which server a session prefers."""
        self._sticky.pop(session, None)

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Interrupt replies, load `checkpoint` into every server as `version`, go on. Returns the pause in seconds."""
        body = {
            "model_path": str(checkpoint),
            "weight_version": str(version),
            "flush_cache": self._pause_mode != "in_place",
            "abort_all_requests": False,
        }

        async def load(url: str) -> None:
            reply = await self._post(url, "/update_weights_from_disk", body)
            if not reply.get("success"):
                raise EngineError(f"{url} could not load {checkpoint}: {reply.get('message')}")

        started = time.perf_counter()
        await self.pause(self._pause_mode)
        try:
            await self._on_every_server(load)
            self._version = version
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CONTROL_TIMEOUT_S):
                await self.resume()
        return time.perf_counter() - started

    async def pause(self, mode: PauseMode) -> None:
        """Stop producing tokens on every server until `resume`."""
        self._running = anyio.Event()
        await self._on_every_server(lambda url: self._post(url, "/pause_generation", {"mode": mode}))

    async def resume(self) -> None:
        """Produce tokens again."""
        try:
            await self._on_every_server(lambda url: self._post(url, "/continue_generation", {}))
        finally:
            self._running.set()

    async def health(self) -> None:
        """Return when every server answers; raise EngineError when one does not."""
        await self._on_every_server(lambda url: self._get(url, "/health"))

    async def read_version(self) -> None:
        """Learn the weight version that the servers serve; a server that was never updated serves version 0."""
        versions = set()
        for url in self._urls:
            reported = (await self._get(url, "/model_info")).get("weight_version", "0")
            versions.add(int(reported) if str(reported).isdigit() else 0)
        if len(versions) != 1:
            raise EngineError(
                f"the servers {', '.join(self._urls)} serve different weight versions: {sorted(versions)}"
            )
        self._version = versions.pop()

    async def _on_every_server(self, call: Callable[[str], Awaitable[Any]]) -> None:
        failures: list[EngineError] = []

        async def guarded(url: str) -> None:
            try:
                await call(url)
            except EngineError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            for url in self._urls:
                group.start_soon(guarded, url)
        if failures:
            raise failures[0]

    async def _post(self, url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        timeout_s = math.inf if path == "/generate" else CONTROL_TIMEOUT_S
        try:
            with anyio.fail_after(timeout_s):
                async with self._http.post(url + path, data=pydantic_core.to_json(body), headers=_JSON) as response:
                    return _content(url, path, response.status, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{url}{path} cannot be reached or broke off: {error!r}") from error

    async def _get(self, url: str, path: str) -> dict[str, Any]:
        try:
            with anyio.fail_after(CONTROL_TIMEOUT_S):
                async with self._http.get(url + path) as response:
                    return _content(url, path, response.status, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{url}{path} cannot be reached or broke off: {error!r}") from error


@asynccontextmanager
async def sglang_engine(
    urls: Sequence[str], *, request_timeout_s: float = 600, pause_mode: PauseMode = "retract"
) -> AsyncIterator[SGLangEngine]:
    """A client of the servers at `urls`, with its connections, for the length of the context."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22) as http:
        engine = SGLangEngine(http, urls, request_timeout_s, pause_mode)
        await engine.read_version()
        yield engine


_JSON = {"Content-Type": "application/json"}


def _content(url: str, path: str, status: int, content: bytes) -> dict[str, Any]:
    if status != 200 and path != "/update_weights_from_disk":
        raise EngineError(_refusal(url, path, status, content))
    try:
        reply: dict[str, Any] = pydantic_core.from_json(content) if content else {}
    except ValueError as error:
        raise EngineError(f"{url}{path} answered {content[:200]!r}, which is not JSON") from error
    return reply


def _refusal(url: str, path: str, status: int, content: bytes) -> str:
    return f"{url}{path} answered {status}: {content[:500].decode(errors='replace')}"


def _generation(reply: dict[str, Any]) -> Generation:
    """Read one `/generate` reply. A server without spans (older SGLang) served all tokens under one version."""
    if not reply or reply["meta_info"]["finish_reason"] is None:
        raise EngineError("the server closed the stream before the reply ended")
    meta = reply["meta_info"]
    if meta["finish_reason"].get("status_code"):
        raise EngineError(f"the server gave the request up: {meta['finish_reason'].get('message')}")
    output_ids = reply["output_ids"]
    scored = meta.get("output_token_logprobs", [])
    if [token for _, token, _ in scored] != output_ids:
        raise EngineError(f"the server returned {len(output_ids)} tokens but the logprobs of {len(scored)} others")
    spans = meta.get("weight_versions") or [
        {"version": meta.get("weight_version", "0"), "start": 0, "end": len(output_ids)}
    ]
    return Generation(
        output_ids=output_ids,
        logprobs=[logprob for logprob, _, _ in scored],
        versions=[
            VersionSpan(int(s["version"]) if str(s["version"]).isdigit() else 0, s["start"], s["end"])
            for s in spans
            if s["end"] > s["start"]
        ],
        finish=meta["finish_reason"]["type"],
        cached_tokens=meta.get("cached_tokens", 0),
        top_logprobs=[[(lp, token) for lp, token, _ in top] for top in meta.get("output_top_logprobs") or []],
    )


def _join(first: Generation, second: Generation) -> Generation:
    """The reply made of two parts, the second of which went on from the first's last token."""
    offset = len(first.output_ids)
    spans = list(first.versions)
    for span in second.versions:
        moved = VersionSpan(span.version, span.start + offset, span.end + offset)
        if spans and spans[-1].version == moved.version:
            spans[-1] = VersionSpan(moved.version, spans[-1].start, moved.end)
        else:
            spans.append(moved)
    return Generation(
        output_ids=first.output_ids + second.output_ids,
        logprobs=first.logprobs + second.logprobs,
        versions=spans,
        finish=second.finish,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )
