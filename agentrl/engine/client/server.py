"""One SGLang server as its HTTP API shows it: what it says of itself, replies that grow, and control calls.

probe      /server_info, /model_info ─► abilities, weight version
generate   prompt ids ─► /generate ─► states ─► GrowingReply (stream.py)
post, get  control calls; the failures of all of them by whose fault they are (stream.py)
"""

from __future__ import annotations

import errno
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import aiohttp
import anyio
import msgspec
import pydantic_core
from aiohttp.connector import Connection

from agentrl.engine.adapters import Adapter
from agentrl.engine.client.stream import (
    BadReplyError,
    GrowingReply,
    ServerLostError,
    UnreachableError,
    events,
    version_number,
)
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.record.soundness import Expected
from agentrl.record.tokens import Generation, ImageSpan
from agentrl.system import traces
from agentrl.system.failure_text import without_secrets

log = logging.getLogger(__name__)

IDLE_CONNECTION_S = 1.0
"""An idle connection is closed after at most twice this. SGLang closes it after 5 s, and a request sent at that moment would
find its server lost."""
CLOSE_TIMEOUT_S = 2.0
DESCRIPTOR_RETRY_S = 1.0
STREAM_INTERVAL_TOKENS = 32
"""Tokens that a server may gather before it sends them. A killed server loses at most so many of each reply, and they are sampled
again."""
STREAM_STATES = 64
"""Where a server sends the whole reply again with every state, so many states of a long reply bound what that costs."""
OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|MemoryError|can(?:no|')t allocate memory", re.IGNORECASE)
"""In a refusal: the server's state is then unknown, and a new start may mend it."""
_JSON = {"Content-Type": "application/json"}


class ServerAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `/server_info` and `/model_info` that are used. Older servers do not name all of them."""

    grammar_backend: str | None = None
    has_image_understanding: bool | None = None
    incremental_streaming_output: bool | None = None
    """Whether a state of a streamed reply holds the new tokens alone."""
    max_req_input_len: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Tokens that a prompt and its reply may have together: what the model's context and the KV cache leave, whichever is smaller."""
    prepares_weights: bool = False
    """Whether it reads weights ahead of the pause that they are for, as the embedded server does."""
    tp_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    pp_size: Annotated[int, msgspec.Meta(ge=1)] = 1

    @property
    def ranks(self) -> int:
        """Processes that hold a part of the weights each."""
        return self.tp_size * self.pp_size

    @property
    def has_grammar(self) -> bool:
        """Whether it can hold a reply to a JSON schema."""
        return self.grammar_backend not in ("none", None)


@dataclass(kw_only=True)
class ServedModel:
    """The model that all servers of an engine serve, as one process knows it."""

    vocabulary: int | None = None
    """Rows of its output layer; None: not known."""
    version: int | None = None
    """The weights of all servers in service, without adapters; None: not known yet."""
    newest_version: int | None = None
    """The newest weights that any server was given."""
    updates: int = 0
    """Weight updates that have begun to load."""
    keeps_cache: bool = False
    """Whether updates leave the servers' caches as they are: in pause mode `in_place`."""
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    """The LoRA adapters of new tokens by role, the only one by ""; {}: tokens are the served model's own."""


class _PatientConnector(aiohttp.TCPConnector):
    """Waits for a descriptor where this process has none left, which says nothing of the server. Its callers bound the wait."""

    async def connect(self, *args: Any, **options: Any) -> Connection:
        while True:
            try:
                return await super().connect(*args, **options)
            except aiohttp.ClientConnectorError as error:
                if error.os_error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
            log.warning(
                "no descriptor is left for a connection to a server; raise `ulimit -n`, or lower `rollout.max_concurrent`"
            )
            await anyio.sleep(DESCRIPTOR_RETRY_S)


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Hold connections to servers for the length of the context."""
    connector = _PatientConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
    timeout = aiohttp.ClientTimeout(total=None)
    http = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22)
    try:
        yield http
    finally:
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):  # a cancellation here would hide what the block raises
            await http.close()


class SGLangServer:
    """A server at `url`. What it can do is found out by `probe`."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: ServedModel) -> None:
        self._http = http
        self.move(url)
        self._model = model
        self.serving = False
        self.down_at = time.monotonic()
        """When it was last in service."""
        self.bad_in_a_row = 0
        """Bad replies since the last good one."""
        self.tokens = 0
        """Generated tokens since `take_tokens` returned them last."""
        self.abilities = ServerAbilities()
        self._requests: set[anyio.CancelScope] = set()

    def move(self, url: str) -> None:
        """Call it at another URL from now on."""
        self.address = url.rstrip("/")
        """Where it is called, secrets included."""
        self.url = without_secrets(self.address)
        """The same as it may be shown."""

    @property
    def in_flight(self) -> int:
        """Replies that this process has open."""
        return len(self._requests)

    async def probe(self, timeout_s: float) -> int:
        """Ask the server what it can do.

        Returns:
            The weight version that it serves.

        Raises:
            EngineError: It does not answer in time, or in a way that can be used.
        """
        facts = await self.get("/server_info", timeout_s) | await self.get("/model_info", timeout_s)
        try:
            self.abilities = msgspec.convert(facts, ServerAbilities)
        except msgspec.ValidationError as error:
            raise EngineError(
                f"{self.url}/server_info: {error}; is it a server that speaks SGLang's protocol?"
            ) from error
        return version_number(facts.get("weight_version", "default"))

    def take_tokens(self) -> int:
        """Return how many tokens it has generated since the last time."""
        taken, self.tokens = self.tokens, 0
        return taken

    def begin_service(self) -> None:
        """Take requests from now on."""
        self.bad_in_a_row = 0
        self.serving = True

    def _expected(self, sampling: Sampling, version: int | None, updates: int) -> Expected:
        # An update in the middle of a reply may also go back.
        current = self._model.version
        return Expected(
            max_new_tokens=sampling.max_new_tokens,
            vocabulary=self._model.vocabulary,
            newest_version=self._model.newest_version,
            oldest_version=None if version is None or current is None else min(version, current),
            only_version=version if updates == self._model.updates else None,
            top_logprobs=sampling.top_logprobs,
        )

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        *,
        images: Sequence[ImageSpan],
        adapter: Adapter | None,
        on_ids: Callable[[list[int]], None] | None,
    ) -> Generation:
        """Return one reply, or its beginning with `finish="abort"`.

        Args:
            input_ids: Ids of the prompt.
            sampling: How to sample.
            images: Those whose tokens are in `input_ids`.
            adapter: The LoRA adapter to compute with, or None.
            on_ids: Gets the ids so far whenever there are new ones, or None.

        Raises:
            ServerLostError: The server is lost, or was taken out of service; it has the beginning.
            BadReplyError: What it says cannot be used; it has the beginning.
            EngineError: The server refuses.
        """
        model = self._model
        body = {
            "rid": uuid.uuid4().hex,
            "input_ids": _with_single_placeholders(input_ids, images),
            "sampling_params": self._sampling_params(sampling, watched=on_ids is not None),
            "return_logprob": True,
            "stream": True,
        }
        body |= _given(
            top_logprobs_num=sampling.top_logprobs or None,
            image_data=[image.url for image in images],
            lora_path=None if adapter is None else adapter.name,
            # Requests of the same key alone share prefixes.
            extra_key=f"after {model.updates} updates" if model.keeps_cache else None,
        )
        given, updates = model.version, model.updates
        reply = GrowingReply(
            self.url,
            incremental=bool(self.abilities.incremental_streaming_output),
            prompt_tokens=len(input_ids),
            expected=lambda: self._expected(sampling, given, updates),
            stops=sampling.stop,
            version=None if adapter is None else adapter.version,
        )
        scope = anyio.CancelScope()
        self._requests.add(scope)
        try:
            with scope:
                await self._stream(body, reply, on_ids)
            if scope.cancelled_caught:
                raise ServerLostError(f"{self.url} was taken out of service", reply.so_far())
            return reply.finished()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), suppress(EngineError):
                await self.post("/abort_request", {"rid": body["rid"]}, CLOSE_TIMEOUT_S)
            raise
        finally:
            self._requests.discard(scope)

    def drop_requests(self) -> None:
        """Let every open `generate` raise ServerLostError with what it has."""
        for scope in list(self._requests):
            scope.cancel()

    async def abort_all(self, timeout_s: float) -> None:
        """End all replies with what they have."""
        await self.post("/abort_request", {"abort_all": True}, timeout_s)

    def _sampling_params(self, sampling: Sampling, *, watched: bool) -> dict[str, Any]:
        """Return how to sample; what leaves the policy's own distribution as it is stays out. `watched`: whether each token is waited for."""
        long = 0 if self.abilities.incremental_streaming_output else sampling.max_new_tokens // STREAM_STATES
        params: dict[str, Any] = {
            "max_new_tokens": sampling.max_new_tokens,
            # SGLang reports a top_k of 1 at another temperature where others in the batch are not greedy.
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "skip_special_tokens": False,
            "stream_interval": 1 if watched else max(STREAM_INTERVAL_TOKENS, long),
        }
        if sampling.altered:
            names = ("top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
            params |= {name: getattr(sampling, name) for name in names}
        return params | _given(
            logit_bias={str(token): bias for token, bias in sampling.logit_bias},
            stop=list(sampling.stop),
            stop_token_ids=list(sampling.stop_token_ids),
            sampling_seed=sampling.seed,
            json_schema=sampling.json_schema,
        )

    async def _stream(
        self, body: dict[str, Any], reply: GrowingReply, on_ids: Callable[[list[int]], None] | None
    ) -> None:
        headers = _JSON | traces.headers()
        try:
            async with self._http.post(
                f"{self.address}/generate", data=pydantic_core.to_json(body), headers=headers
            ) as response:
                if response.status != 200:
                    refusal = self._refusal("/generate", response.status, await response.read())
                    raise BadReplyError(refusal, reply.so_far()) if response.status >= 500 else EngineError(refusal)
                async for event in events(response.content):
                    try:
                        state = pydantic_core.from_json(event)
                    except ValueError as error:
                        raise BadReplyError(
                            f"{self.url} sent {event[:200]!r}, which is not JSON", reply.so_far()
                        ) from error
                    reply.grow(state)
                    if on_ids is not None:
                        on_ids(reply.output_ids)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable("/generate", error, reply.so_far()) from error

    async def post(self, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the JSON of an answer.

        Raises:
            ServerLostError: The server does not answer in time, or fails.
            EngineError: It refuses.
        """
        return await self._call("POST", path, timeout_s, pydantic_core.to_json(body))

    async def get(self, path: str, timeout_s: float) -> dict[str, Any]:
        """Return the same for GET."""
        return await self._call("GET", path, timeout_s)

    async def _call(self, method: str, path: str, timeout_s: float, data: bytes | None = None) -> dict[str, Any]:
        try:
            with anyio.fail_after(timeout_s):
                async with self._http.request(method, self.address + path, data=data, headers=_JSON) as response:
                    status, content = response.status, await response.read()
        except TimeoutError:
            raise ServerLostError(f"{self.url}{path} did not answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(path, error) from error
        refusal = self._refusal(path, status, content)
        if status >= 500 or (status != 200 and OUT_OF_MEMORY.search(refusal)):
            raise ServerLostError(refusal)
        if status != 200:
            raise EngineError(refusal)
        try:
            reply = pydantic_core.from_json(content or b"{}")
        except ValueError as error:
            raise ServerLostError(f"{self.url}{path} answered {content[:200]!r}, which is not JSON") from error
        if not isinstance(reply, dict):
            raise ServerLostError(f"{self.url}{path} answered {content[:200]!r}, which is no JSON object")
        return reply

    def _unreachable(self, path: str, error: Exception, partial: Generation | None = None) -> UnreachableError:
        if isinstance(error, aiohttp.ClientConnectorError):
            refused = isinstance(error.os_error, ConnectionRefusedError)
            why = "nothing listens there" if refused else str(error.os_error)
            return UnreachableError(f"{self.url} cannot be reached: {why}", partial)
        shown = without_secrets(repr(error))
        return UnreachableError(f"{self.url}{path} cannot be reached or broke off: {shown}", partial)

    def _refusal(self, path: str, status: int, content: bytes) -> str:
        return f"{self.url}{path} answered {status}: {content[:500].decode(errors='replace')}"


def _given(**options: Any) -> dict[str, Any]:
    """Return the options of a request that are not left out: None and empty ones are."""
    return {name: value for name, value in options.items() if value not in (None, [], {})}


def _with_single_placeholders(input_ids: list[int], images: Sequence[ImageSpan]) -> list[int]:
    """Return a prompt with one id where each image is: SGLang makes the image's many of it."""
    ids, end = [], 0
    for image in images:
        ids += input_ids[end : image.start + 1]
        end = image.start + image.length
    return ids + input_ids[end:]
