"""`agentrl serve`: the proxy and its record as a service, for agents that live elsewhere.

    POST   /sessions                      {"temperature"?, "top_p"?, "max_tokens"?} -> id, api_key, base_url, ...
    GET    /sessions                      all sessions, open and ended
    GET    /sessions/ID                   one of them
    POST   /sessions/ID/reward            {"value", "completion_id"?, "role"?}
    POST   /sessions/ID/close             {"reward"?}
    GET    /sessions/ID/trajectories      the record: turns, and paths ready to train on
    DELETE /sessions/ID                   close it and forget its record
    POST   /weights                       {"path", "version"}: load new weights into running generation
    GET    /metrics                       for Prometheus; on the loopback without a key (`metrics_page.py`)

All take the service's admin key; the model APIs beside them take a session's own. docs/serve.md has examples.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import BaseModel, ConfigDict, Field

from agentrl.config import RunConfig, check_is_config
from agentrl.engine.adapter_folders import adapter_folders
from agentrl.engine.client.version_tracker import VERSION_DIGITS
from agentrl.errors import EngineError, EpisodeError
from agentrl.proxy.api_error import ApiError, read_body
from agentrl.proxy.endpoints import Body, Proxy
from agentrl.proxy.headers import bearer_key
from agentrl.proxy.http_door import Handle
from agentrl.proxy.http_response import Response, refusals
from agentrl.proxy.json_text import json_pieces
from agentrl.proxy.session import SamplingDefaults, Session
from agentrl.proxy.sessions import key_bytes
from agentrl.record.returns import turn_returns
from agentrl.record.roots import roots_of
from agentrl.reward import MAX_REWARD
from agentrl.rollout.check_start import check_start, with_chat_format
from agentrl.rollout.open_engine import open_engine
from agentrl.rollout.open_runner import open_model_proxy
from agentrl.run.metrics_page import with_metrics
from agentrl.system.tasks import in_thread, opening
from agentrl.system.this_process import settled

IDLE_TIMEOUT_S = 3600.0
"""When a session that nobody uses is closed, where the configuration does not say."""
KEPT_ENDED_SESSIONS = 10_000
"""Ended sessions whose records can be fetched; the oldest are forgotten first."""

Finite = Annotated[float, Field(allow_inf_nan=False, ge=-MAX_REWARD, le=MAX_REWARD)]


async def serve(
    config: RunConfig, admin_key: str | None = None, announce: Callable[[str, str], None] | None = None
) -> None:
    """Serve the configured model, and record what agents elsewhere do with it, until cancelled. docs/serve.md shows its API.

    Args:
        config: `model`, `engine` and `proxy` are used.
        admin_key: Key of the session API. Default: `$AGENTRL_ADMIN_KEY`, or a new one, which is printed.
        announce: It is called with the model's name and the URL once requests are answered. Default: they are printed.

    Raises:
        UsageError: The input cannot be used. Nothing has been started then.
        AgentRLError: The engine cannot go on.
    """
    check_is_config(config, "serve")
    given = admin_key or os.environ.get("AGENTRL_ADMIN_KEY")
    key = given or f"sk-admin-{secrets.token_urlsafe(24)}"
    config = await check_start(config)
    if config.proxy.session_idle_timeout_s is None:
        proxy_config = config.proxy.model_copy(update={"session_idle_timeout_s": IDLE_TIMEOUT_S})
        config = config.model_copy(update={"proxy": proxy_config})
    async with opening(lambda: open_engine(config, training=True)) as engine:  # POST /weights may bring an adapter
        bounded, chat_format = await with_chat_format(config)  # while the servers start
        middleware = partial(_middleware, bounded, key)
        async with open_model_proxy(bounded, await engine(), chat_format, middleware=middleware) as proxy:
            with settled():
                if not given:
                    print(f"admin key {key}")
                (announce or print_address)(proxy.model, proxy.url)
                await anyio.sleep_forever()


def _middleware(config: RunConfig, key: str, proxy: Proxy) -> Handle:
    return with_metrics(proxy, Service(proxy, key).handle, "serve", config.proxy.host, key)


def print_address(model: str, url: str) -> None:
    """Print where a model is served."""
    print(f"serving {model} at {url}", flush=True)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenBody(_Body):
    """`POST /sessions`: how a request that does not say is sampled."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class RewardBody(_Body):
    """`POST /sessions/ID/reward`: of the whole session, of one model call, or of one role."""

    value: Finite
    completion_id: str | None = None
    role: str | None = None


class CloseBody(_Body):
    """`POST /sessions/ID/close`."""

    reward: Finite | None = None


class WeightsBody(_Body):
    """`POST /weights`: a directory with safetensors that the servers can read."""

    path: str
    version: Annotated[int, Field(ge=0, lt=10**VERSION_DIGITS)]


@dataclass
class _Entry:
    session: Session
    id: str = field(default_factory=lambda: f"ses_{secrets.token_hex(8)}")
    reward: float | None = None
    opened_at: float = field(default_factory=time.time)
    final: bool = False
    """Whether `close` was asked for: no reward is taken any more."""


class Service:
    """The paths of `agentrl serve` around a proxy's own."""

    def __init__(self, proxy: Proxy, admin_key: str) -> None:
        self._proxy = proxy
        self._admin_key = admin_key
        self._entries: dict[str, _Entry] = {}

    async def handle(self, method: str, target: str, headers: Mapping[str, str], body: Body) -> Response:
        """Answer one HTTP request, the model APIs included.

        Args:
            method: Its method.
            target: Its path, with its query.
            headers: Its headers.
            body: Its body, which is read once its key is known to be good.

        Returns:
            The response, which tells what is refused too.
        """
        path = target.partition("?")[0]
        if path.split("/")[1:2] not in (["sessions"], ["weights"]):
            return await self._proxy.handle(method, target, headers, body)
        with refusals(method, path) as answered:
            self._check_key(headers)
            received = body if isinstance(body, bytes) else await body()
            content = await self._answer(method, path, received or b"{}")
            answered.reply = Response(await in_thread(lambda: b"".join(json_pieces(content))))
        return answered.reply

    def _check_key(self, headers: Mapping[str, str]) -> None:
        if not hmac.compare_digest(key_bytes(bearer_key(headers)), key_bytes(self._admin_key)):
            raise ApiError(401, "This path takes the admin key of the service.", code="invalid_api_key")

    async def _answer(self, method: str, path: str, body: bytes) -> Any:
        match method, path.strip("/").split("/"):
            case "POST", ["weights"]:
                return await self._load(read_body(WeightsBody, body))
            case "POST", ["sessions"]:
                return self._open(read_body(OpenBody, body))
            case "GET", ["sessions"]:
                entries = list(self._entries.values())
                return {"sessions": await in_thread(lambda: [self._state(entry) for entry in entries])}
            case "GET", ["sessions", session_id]:
                return self._state(self._entry(session_id))
            case "DELETE", ["sessions", session_id]:
                entry = self._entry(session_id)
                self._proxy.close_session(entry.session)
                del self._entries[entry.id]
                return {"id": entry.id, "deleted": True}
            case "POST", ["sessions", session_id, "reward"]:
                return self._reward(self._entry(session_id), read_body(RewardBody, body))
            case "POST", ["sessions", session_id, "close"]:
                return self._close(self._entry(session_id), read_body(CloseBody, body))
            case "GET", ["sessions", session_id, "trajectories"]:
                return await in_thread(self._trajectories, self._entry(session_id))
        raise ApiError(404, f"Unknown path {method} {path}.", code="unknown_url")

    def _entry(self, session_id: str) -> _Entry:
        entry = self._entries.get(session_id)
        if entry is None:
            raise ApiError(404, f"There is no session {session_id!r}.", code="session_not_found")
        return entry

    def _open(self, body: OpenBody) -> dict[str, Any]:
        entry = _Entry(self._proxy.open_session(SamplingDefaults(**body.model_dump())))
        self._entries[entry.id] = entry
        surplus = len(self._entries) - len(self._proxy.sessions) - KEPT_ENDED_SESSIONS
        if surplus > 0:
            ended = (e.id for e in self._entries.values() if e.session.closed)
            for old in list(islice(ended, surplus)):
                del self._entries[old]
        return {
            **self._state(entry),
            "api_key": entry.session.key,
            "base_url": self._proxy.base_url,
            "anthropic_base_url": self._proxy.url,
            "model": self._proxy.model,
        }

    @staticmethod
    def _state(entry: _Entry) -> dict[str, Any]:
        turns = entry.session.record.turns
        return {
            "id": entry.id,
            "status": "ended" if entry.session.closed else "open",
            "opened_at": entry.opened_at,
            "calls": len(turns),
            "tokens": sum(len(turn.output_ids) for turn in turns),
            "reward": entry.reward,
        }

    def _reward(self, entry: _Entry, body: RewardBody) -> dict[str, Any]:
        if entry.final:
            raise _final(entry)
        if body.role is not None:
            try:
                entry.session.role(body.role)
            except EpisodeError as error:
                raise ApiError(400, f"Invalid 'role': {error}.", param="role", code="invalid_value") from None
            entry.session.role_rewards[body.role] = body.value
        elif body.completion_id is None:
            entry.reward = body.value
        else:
            try:
                entry.session.reward(body.completion_id, body.value)
            except KeyError:
                message = f"No model call of this session has the id {body.completion_id!r}."
                raise ApiError(404, message, param="completion_id") from None
        return self._state(entry)

    def _close(self, entry: _Entry, body: CloseBody) -> dict[str, Any]:
        if body.reward is not None:
            if entry.final and body.reward != entry.reward:
                raise _final(entry)
            entry.reward = body.reward
        entry.final = True
        self._proxy.close_session(entry.session)
        return self._state(entry)

    def _trajectories(self, entry: _Entry) -> dict[str, Any]:
        record = entry.session.record
        record.reward_roles(entry.session.role_rewards)
        returns = turn_returns(record, entry.reward or 0.0)
        paths = [{**vars(path), "returns": path.per_token(returns)} for path in record.trajectories()]
        texts = list(entry.session.turn_texts)  # a call that ends meanwhile is not among them
        index_of = {id(turn): index for index, turn in enumerate(record.turns)}
        roots = [
            {"kind": root.kind, "name": root.name, "turns": [index_of[id(turn)] for turn in root.turns]}
            for root in roots_of(record.turns[: len(texts)], texts)
        ]
        return {**self._state(entry), "turns": record.to_json(), "trajectories": paths, "roots": roots}

    async def _load(self, body: WeightsBody) -> dict[str, Any]:
        try:
            await in_thread(self._check_roles, Path(body.path))
            pause_s = await self._proxy.engine.update_weights(Path(body.path), body.version)
        except (EngineError, OSError, ValueError) as error:  # ValueError: a path with a null byte in it
            raise ApiError(400, str(error), param="path", code="weights_not_loaded") from error
        return {"version": body.version, "pause_s": pause_s}

    def _check_roles(self, directory: Path) -> None:
        """Check that weights have an adapter for each role that is answered, and for no other.

        Raises:
            EngineError: They do not.
        """
        answered, held = set(self._proxy.adapters), adapter_folders(directory).keys() - {""}
        if held != answered:
            raise EngineError(
                f"{directory} has {_adapters(held)}, and this service answers {_adapters(answered)}; start another with a checkpoint of "
                "theirs as `--model`, or with `--trainer.lora.rank` and `--trainer.lora.roles`"
            )


def _adapters(roles: set[str]) -> str:
    return f"the adapters of roles {', '.join(sorted(roles))}" if roles else "no adapters of roles"


def _final(entry: _Entry) -> ApiError:
    message = f"The session {entry.id!r} was closed, and its record is final: give rewards before you close it."
    return ApiError(409, message, code="session_closed")
