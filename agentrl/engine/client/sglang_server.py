"""One SGLang server as its HTTP API shows it: replies that grow, and control calls.

What can go wrong is told apart by whose fault it is: `agentrl.engine.client.server_errors`.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio
import pydantic_core

from agentrl.engine.client.adapters import Adapter
from agentrl.engine.client.generate_request import sampling_params, stream_interval, with_single_placeholders
from agentrl.engine.client.growing_reply import GrowingReply
from agentrl.engine.client.server_errors import (
    BadReplyError,
    LocalShortageError,
    ServerFailedError,
    ServerLostError,
    UnreachableError,
    says_out_of_memory,
    shortage,
)
from agentrl.engine.client.server_events import events, from_json
from agentrl.engine.client.server_facts import ModelInfo, ServerAbilities, ServerInfo, facts_of, served_version
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.record.soundness import Expected
from agentrl.record.tokens import Generation, ImageSpan
from agentrl.system import traces
from agentrl.system.failure_text import without_secrets
from agentrl.system.tasks import Condition
from agentrl.system.this_process import is_loopback

IDLE_CONNECTION_S = 1.0
"""An idle connection is closed after at most twice this. SGLang closes it after 5 s, and a request sent at that moment would
find its server lost."""
CLOSE_TIMEOUT_S = 2.0
SHORTAGE_RETRY_S = 0.2
"""How long to wait before asking again for what this machine lacked."""


@dataclass
class ServedModel:
    """The model that all servers of an engine serve, as far as it is known."""

    vocabulary: int | None = None
    """Rows of its output layer; None: not known."""
    version: int | None = None
    """The weights of all servers in service; None: not known yet."""
    newest_version: int | None = None
    """The newest weights that any server was given."""
    updates: int = 0
    """How many weight updates have begun to load."""
    keeps_cache: bool = False
    """Whether updates leave the servers' caches as they are: in pause mode `in_place`."""
    reply_ended: Condition = field(default_factory=Condition)


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Hold connections to servers for the length of the context."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
    timeout = aiohttp.ClientTimeout(total=None)
    http = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22)
    try:
        yield http
    finally:
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):  # a cancellation here would hide what the block raises
            await http.close()


class SGLangServer:
    """A server at `url`. What it can do is found out by `probe`."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: ServedModel | None = None) -> None:
        self._http = http
        self.move(url)
        self._model = model or ServedModel()
        self.in_flight = 0
        self.serving = False
        self.down_at = time.monotonic()
        """When it was last in service."""
        self.bad_in_a_row = 0
        """Bad replies since the last good one."""
        self.tokens = 0
        """Generated tokens since `take_tokens` returned them last."""
        self.abilities = ServerAbilities()
        self.incarnation = 0
        """How often it was put into service."""
        self._requests: set[anyio.CancelScope] = set()

    def move(self, url: str) -> None:
        """Call it at another URL from now on."""
        self.address = url.rstrip("/")
        """Where it is called, secrets included."""
        self.url = without_secrets(self.address)
        """The same as it may be shown."""

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        return is_loopback(self.address)

    async def probe(self, timeout_s: float) -> int:
        """Generate one token to learn what the server reports.

        Returns:
            The weight version that it serves.

        Raises:
            EngineError: It does not answer in time, or in a way that can be used.
        """
        said = await self.get("/server_info", timeout_s, missing_ok=True)
        info = facts_of(ServerInfo, said, f"{self.url}/server_info")
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}, "return_logprob": True}
        takes_interval = True
        try:
            reply = await self.post("/generate", {**body, "sampling_params": {"stream_interval": 1, **_ONE}}, timeout_s)
        except EngineError as error:
            if isinstance(error, ServerLostError) and not isinstance(error, ServerFailedError):
                raise
            takes_interval = False
            reply = await self.post("/generate", body, timeout_s)
        token = GrowingReply(self.url, incremental=False, prompt_tokens=1, expected=lambda: self._expected(_ONE_TOKEN))
        token.grow(reply)
        token.finished()
        where = f"{self.url}/model_info"
        model = facts_of(ModelInfo, await self.get("/model_info", timeout_s), where)
        self.abilities = ServerAbilities(
            reports_spans="weight_versions" in reply["meta_info"],
            has_grammar=info.has_grammar,
            takes_images=bool(model.has_image_understanding),
            ranks=info.ranks,
            incremental=bool(info.incremental_streaming_output),
            takes_interval=takes_interval,
            context_length=info.max_req_input_len,
        )
        return served_version(model, where)

    def take_tokens(self) -> int:
        """Return how many tokens it has generated since the last time."""
        taken, self.tokens = self.tokens, 0
        return taken

    def begin_service(self) -> None:
        """Take requests from now on."""
        self.bad_in_a_row = 0
        self.incarnation += 1
        self.serving = True

    def _expected(self, sampling: Sampling, version: int | None = None, updates: int = 0) -> Expected:
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
        session: str,
        images: Sequence[ImageSpan],
        adapter: Adapter | None,
        on_ids: Callable[[list[int]], None] | None,
    ) -> Generation:
        """Return one reply, or its beginning with `finish="abort"`.

        Args:
            input_ids: Ids of the prompt.
            sampling: How to sample.
            session: What shares a beginning with it.
            images: Those whose tokens are in `input_ids`.
            adapter: The LoRA adapter to compute with, or None.
            on_ids: Gets the ids so far whenever there are new ones, or None.

        Raises:
            ServerLostError: The server is lost, or was taken out of service; it has the beginning.
            BadReplyError: What it says cannot be used; it has the beginning.
            LocalShortageError: This machine has no connection left; it has the beginning.
            EngineError: The server refuses.
        """
        rid = uuid.uuid4().hex
        body = {
            "rid": rid,
            # Servers may log what they are sent, and a session is known to us by its key.
            "session_id": hashlib.blake2b(session.encode(), digest_size=16).hexdigest(),
            "input_ids": with_single_placeholders(input_ids, images),
            "sampling_params": sampling_params(sampling) | self._interval(sampling, watched=on_ids is not None),
            "return_logprob": True,
            "stream": True,
        }
        if sampling.top_logprobs:
            body["top_logprobs_num"] = sampling.top_logprobs
        if images:
            body["image_data"] = [image.url for image in images]
        if adapter is not None:
            body["lora_path"] = adapter.name
        if self._model.keeps_cache:
            body["extra_key"] = f"after {self._model.updates} updates"  # requests of the same key alone share prefixes
        given, updates = self._model.version, self._model.updates
        reply = GrowingReply(
            self.url,
            incremental=self.abilities.incremental,
            prompt_tokens=len(input_ids),
            expected=lambda: self._expected(sampling, given, updates),
            stops=sampling.stop,
            version=None if adapter is None else adapter.version,
        )
        self.in_flight += 1
        try:
            with anyio.CancelScope() as scope:
                self._requests.add(scope)
                await self._stream(body, reply, on_ids)
            if scope.cancelled_caught:
                raise ServerLostError(f"{self.url} was taken out of service", reply.so_far())
            return reply.finished()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_TIMEOUT_S):
                await self.abort(rid)
            raise
        finally:
            self._requests.discard(scope)
            self.in_flight -= 1
            self._model.reply_ended.notify_all()

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

    async def load_adapters(self, adapters: Iterable[Adapter], timeout_s: float) -> None:
        """Have adapters ready for requests, one after the other, each within `timeout_s`.

        Raises:
            ServerLostError: The server does not answer.
            EngineError: It refuses, or has no room for all of them.
        """
        loaded: Collection[str] | None = None
        wanted = list(adapters)
        for adapter in wanted:
            body = {"lora_name": adapter.name, "lora_path": str(adapter.directory)}
            reply = await self.post("/load_lora_adapter", body, timeout_s, any_status=True)
            if not reply.get("success"):
                reason = reply.get("error_message") or reply
                remedy = (
                    "; start it with --enable-lora, --max-lora-rank and --lora-target-modules"
                    if "not enabled" in str(reason)
                    else ""
                )
                raise EngineError(f"{self.url} could not load the adapter {adapter.directory}: {reason}{remedy}")
            loaded = reply.get("loaded_adapters")
        if loaded is not None and (lacking := [adapter.name for adapter in wanted if adapter.name not in loaded]):
            raise EngineError(
                f"{self.url} has no room for {len(wanted)} adapters, and put away {lacking[0]} for another; start it with "
                f"--max-loaded-loras {len(wanted)} or more"
            )

    async def unload_adapters(self, adapters: Iterable[Adapter], timeout_s: float) -> None:
        """Forget adapters, those that the server knows."""
        for adapter in adapters:
            await self.post("/unload_lora_adapter", {"lora_name": adapter.name}, timeout_s, any_status=True)

    async def restore_adapters(self, refused: Iterable[Adapter], current: Iterable[Adapter], timeout_s: float) -> None:
        """Have the adapters of before again, where some of an update were loaded in their place before another was refused."""
        await self.unload_adapters(refused, timeout_s)
        for adapter in current:  # one that it still has is refused
            body = {"lora_name": adapter.name, "lora_path": str(adapter.directory)}
            await self.post("/load_lora_adapter", body, timeout_s, any_status=True)

    def _interval(self, sampling: Sampling, *, watched: bool) -> dict[str, int]:
        if not self.abilities.takes_interval:
            return {}
        return {"stream_interval": stream_interval(sampling, watched=watched, incremental=self.abilities.incremental)}

    async def _stream(
        self, body: dict[str, Any], reply: GrowingReply, on_ids: Callable[[list[int]], None] | None
    ) -> None:
        try:
            async with self._http.post(
                f"{self.address}/generate", data=pydantic_core.to_json(body), headers=_JSON | traces.headers()
            ) as response:
                if response.status != 200:
                    refusal = _refusal(self.url, "/generate", response.status, await response.read())
                    raise BadReplyError(refusal, reply.so_far()) if response.status >= 500 else EngineError(refusal)
                async for event in events(response.content):
                    reply.grow(from_json(event, self.url, reply))
                    if on_ids is not None:
                        on_ids(reply.checked_ids)
        except _FAILURES as error:
            raise self._failure("/generate", error, reply.so_far()) from error

    def _failure(self, path: str, error: Exception, partial: Generation | None = None) -> EngineError:
        if (lacking := shortage(error)) is not None:
            return LocalShortageError(
                f"{self.url}{path} cannot be asked, because this machine lacks something: {lacking}. Raise its limits (ulimit -n, "
                "ulimit -u), or lower `rollout.max_concurrent`",
                partial,
            )
        if isinstance(error, RuntimeError):
            raise error
        if isinstance(error, aiohttp.ClientConnectorError):
            refused = isinstance(error.os_error, ConnectionRefusedError)
            why = "nothing listens there" if refused else error.os_error.strerror
            return UnreachableError(f"{self.url} cannot be reached: {why}", partial)
        shown = without_secrets(repr(error))
        return UnreachableError(f"{self.url}{path} cannot be reached or broke off: {shown}", partial)

    async def post(
        self, path: str, body: dict[str, Any], timeout_s: float, *, any_status: bool = False
    ) -> dict[str, Any]:
        """Return the JSON of a reply with status 200, or with any. Raises ServerLostError, EngineError."""
        data = pydantic_core.to_json(body)
        return await self._ask("POST", path, timeout_s, any_status=any_status, data=data, headers=_JSON)

    async def get(self, path: str, timeout_s: float, *, missing_ok: bool = False) -> dict[str, Any]:
        """Return the same for GET. `missing_ok`: an unknown path answers with {}."""
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
        lacking: LocalShortageError | None = None
        try:
            with anyio.fail_after(timeout_s):
                while True:
                    lacking = None
                    try:
                        status, content = await self._request(method, path, **options)
                        break
                    except LocalShortageError as error:
                        lacking = error
                        await anyio.sleep(SHORTAGE_RETRY_S)
        except TimeoutError:
            raise lacking or ServerLostError(f"{self.url}{path} did not answer within {timeout_s:g} s") from None
        if missing_ok and status == 404:
            return {}
        refusal = _refusal(self.url, path, status, content)
        if status >= 500 or (status != 200 and says_out_of_memory(refusal)):
            raise ServerFailedError(refusal)
        if status != 200 and not any_status:
            raise EngineError(refusal)
        try:
            reply = pydantic_core.from_json(content) if content else {}
        except ValueError as error:
            raise ServerLostError(f"{self.url}{path} answered {content[:200]!r}, which is not JSON") from error
        if not isinstance(reply, dict):
            raise ServerLostError(f"{self.url}{path} answered {content[:200]!r}, which is no JSON object")
        return reply

    async def _request(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        try:
            async with self._http.request(method, self.address + path, **options) as response:
                return response.status, await response.read()
        except _FAILURES as error:
            raise self._failure(path, error) from error


_JSON = {"Content-Type": "application/json"}
_ONE = {"max_new_tokens": 1}
_ONE_TOKEN = Sampling(max_new_tokens=1)
_FAILURES = (aiohttp.ClientError, OSError, ValueError, RuntimeError, MemoryError)


def _refusal(url: str, path: str, status: int, content: bytes) -> str:
    return f"{url}{path} answered {status}: {content[:500].decode(errors='replace')}"
