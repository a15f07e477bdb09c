"""`agentrl serve`: the proxy and its record as a service, for agents that live elsewhere. Each session that ends is kept in a store.

    POST   /sessions                      {"temperature"?, "top_p"?, "max_tokens"?} -> id, api_key, base_url, ...
    GET    /sessions                      all sessions, open and ended
    GET    /sessions/ID                   one of them
    POST   /sessions/ID/reward            {"reward", "completion_id"?, "role"?}
    POST   /sessions/ID/close             {"reward"?}
    GET    /sessions/ID/trajectories      the record: turns, and paths ready to train on
    DELETE /sessions/ID                   end it and keep nothing of it
    POST   /weights                       {"path", "version"}: load new weights into running generation
    GET    /metrics                       for Prometheus; on the loopback without a key (`metrics_page.py`)

All take the service's admin key; the model APIs beside them take a session's own. docs/serve.md has examples.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import BaseModel, ConfigDict, Field

from agentrl.config.run import RunConfig, check_is_config
from agentrl.config.trainer import TurnsConfig
from agentrl.engine.adapters import adapter_folders
from agentrl.engine.client.stream import VERSION_DIGITS
from agentrl.engine.protocol import UpdatableEngine
from agentrl.errors import AgentRLError, DiskError, EngineError, StoreError
from agentrl.evaluation.directory import hold_store, new_directory
from agentrl.evaluation.progress import print_note
from agentrl.proxy.app import Proxy
from agentrl.proxy.errors import ApiError, map_errors, read_body
from agentrl.proxy.http_messages import Body, Handle, Response, to_json
from agentrl.proxy.session import SamplingDefaults, Session
from agentrl.record.conversations import are_main, conversations_of
from agentrl.record.credit import mask_turns, turn_returns
from agentrl.record.end_reason import EndReason
from agentrl.record.trajectory import TokenRecord
from agentrl.reward import MAX_REWARD
from agentrl.rollout.check_start import check_start, with_chat_format
from agentrl.rollout.open_runner import open_engine, open_model_proxy
from agentrl.run.metrics_page import check_admin_key, with_metrics
from agentrl.run.session_store import SessionStore
from agentrl.store.outcome import Outcome
from agentrl.system.tasks import in_thread, opening
from agentrl.system.this_process import settled

IDLE_TIMEOUT_S = 3600.0
"""When a session that nobody uses is closed, where the configuration does not say."""

RewardValue = Annotated[float, Field(allow_inf_nan=False, ge=-MAX_REWARD, le=MAX_REWARD)]


async def serve(
    config: RunConfig,
    admin_key: str | None = None,
    announce: Callable[[str, str], None] | None = None,
    out: str | Path | None = None,
) -> None:
    """Serve the configured model, and record what agents elsewhere do with it, until cancelled. docs/serve.md shows its API.

    Args:
        config: `model`, `engine`, `proxy`, `trainer.lora` and `seed` are used.
        admin_key: Key of the session API. Default: `$AGENTRL_ADMIN_KEY`, or a new one, which is printed.
        announce: It is called with the model's name and the URL once requests are answered. Default: they are printed.
        out: The directory that keeps the sessions, those of an earlier start included. Default: one in `runs/` that is named by the time.

    Raises:
        UsageError: The input cannot be used. Nothing has been started then.
        AgentRLError: The engine cannot go on, or the disk is full.
    """
    check_is_config(config, "serve")
    given = admin_key or os.environ.get("AGENTRL_ADMIN_KEY")
    key = given or f"sk-admin-{secrets.token_urlsafe(24)}"
    config = await check_start(config, print_note)
    directory = await in_thread(new_directory, "service") if out is None else Path(out)
    async with AsyncExitStack() as stack:
        held = hold_store(directory, "service", {"model": config.model.path}, config)
        store = await in_thread(stack.enter_context, held)
        kept = await in_thread(SessionStore, store)
        print_note(f"starting the engine; sessions are kept in {directory}")
        # For training: POST /weights may bring an adapter. By the same seed, a start would sample what an earlier one did.
        seed = config.seed + store.restart - 1
        engine = await stack.enter_async_context(opening(lambda: open_engine(config, seed=seed, training=True)))
        bounded, chat_format = await with_chat_format(config)  # while the servers start

        def middleware(proxy: Proxy) -> Handle:
            service = Service(proxy, served, kept, key)
            stack.push_async_callback(service.keep_all)  # once the proxy answers no more
            return with_metrics(proxy, service.handle, "serve", config.proxy.host, key)

        served = await engine()
        opened = open_model_proxy(
            bounded, served, chat_format, session_idle_timeout_s=IDLE_TIMEOUT_S, middleware=middleware
        )
        proxy = await stack.enter_async_context(opened)
        with settled():
            if not given:
                print(f"admin key {key}")
            (announce or print_address)(proxy.model, proxy.url)
            await anyio.sleep_forever()


def print_address(model: str, url: str) -> None:
    """Print where a model is served."""
    print(f"serving {model} at {url}", flush=True)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenBody(_Body):
    """`POST /sessions`: how a request that does not say is sampled, and the bound of every reply."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class RewardBody(_Body):
    """`POST /sessions/ID/reward`: of the whole session, of one model call, or of one role."""

    reward: RewardValue
    completion_id: str | None = None
    role: str | None = None


class CloseBody(_Body):
    """`POST /sessions/ID/close`."""

    reward: RewardValue | None = None


class WeightsBody(_Body):
    """`POST /weights`: a directory with safetensors that the servers can read."""

    path: str
    version: Annotated[int, Field(ge=0, lt=10**VERSION_DIGITS)]


@dataclass
class _Entry:
    id: str
    session: Session
    reward: float | None = None
    opened_at: float = field(default_factory=time.time)


class Service:
    """The paths of `agentrl serve` around a proxy's own."""

    def __init__(self, proxy: Proxy, engine: UpdatableEngine, kept: SessionStore, admin_key: str) -> None:
        self._proxy = proxy
        self._engine = engine
        self._kept = kept
        self._admin_key = admin_key
        self._entries: dict[str, _Entry] = {}
        """The sessions that were not closed, idle ones that have ended included."""
        self._changing = anyio.Lock()
        """Held while a session is opened, given a reward, kept or deleted: what is kept is final."""

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
        with map_errors(method, path) as handled:
            check_admin_key(headers, self._admin_key)
            received = body if isinstance(body, bytes) else await body()
            content = await self._answer(method, path, received or b"{}")
            handled.reply = Response(await in_thread(to_json, content))
        return handled.reply

    async def _answer(self, method: str, path: str, body: bytes) -> Any:
        match method, path.strip("/").split("/"):
            case "POST", ["weights"]:
                return await self._load(read_body(WeightsBody, body))
            case "POST", ["sessions"]:
                change = self._open(read_body(OpenBody, body))
            case "GET", ["sessions"]:  # as if it were a change: a session that ends meanwhile is listed once
                change = in_thread(lambda: {"sessions": [*self._kept.states(), *map(_state, self._entries.values())]})
            case "GET", ["sessions", session_id]:
                entry = self._entries.get(session_id)
                return (await self._details(session_id))["session"] if entry is None else _state(entry)
            case "GET", ["sessions", session_id, "trajectories"]:
                return await self._trajectories(session_id)
            case "DELETE", ["sessions", session_id]:
                change = self._delete(session_id)
            case "POST", ["sessions", session_id, "reward"]:
                change = self._reward(session_id, read_body(RewardBody, body))
            case "POST", ["sessions", session_id, "close"]:
                change = self._close(session_id, read_body(CloseBody, body))
            case _:
                raise ApiError(404, f"Unknown path {method} {path}.", code="unknown_url")
        with anyio.CancelScope(shield=True):  # its client may leave: a change is made whole
            async with self._changing:
                try:
                    return await change
                except (DiskError, StoreError) as error:
                    message = f"It is not kept; ask again when there is room: {error}"
                    raise ApiError(507, message, code="not_kept") from error

    async def _details(self, session_id: str) -> dict[str, Any]:
        details = await in_thread(self._kept.details, session_id)
        if details is None:
            raise ApiError(404, f"There is no session {session_id!r}.", code="session_not_found")
        return details

    async def _open(self, body: OpenBody) -> dict[str, Any]:
        session = self._proxy.open_session(SamplingDefaults(**body.model_dump(), is_bound=True))
        try:
            entry = _Entry(await in_thread(self._kept.open, self._engine.version), session)
        except AgentRLError:
            self._proxy.close_session(session)
            raise
        self._entries[entry.id] = entry
        while len(self._entries) - len(self._proxy.sessions) > self._proxy.limits.max_sessions:
            await self._keep(next(idle for idle in self._entries.values() if idle.session.closed))
        return {
            **_state(entry),
            "api_key": entry.session.key,
            "base_url": self._proxy.base_url,
            "anthropic_base_url": self._proxy.url,
            "model": self._proxy.model,
        }

    async def _reward(self, session_id: str, body: RewardBody) -> dict[str, Any]:
        entry = self._entries.get(session_id)
        if entry is None:
            await self._details(session_id)
            raise _final(session_id)
        if body.role is not None:
            if body.role not in (spoke := {turn.role for turn in entry.session.record.turns}):
                message = f"Invalid 'role': no model call of this session was made as {body.role!r}, those it has as {sorted(spoke)}."
                raise ApiError(400, message, param="role", code="invalid_value")
            entry.session.role_rewards[body.role] = body.reward
        elif body.completion_id is None:
            entry.reward = body.reward
        else:
            try:
                for turn in entry.session.turns_of(body.completion_id):
                    turn.reward = body.reward
            except KeyError:
                raise ApiError(404, f"No model call of this session has the id {body.completion_id!r}.") from None
        return _state(entry)

    async def _close(self, session_id: str, body: CloseBody) -> dict[str, Any]:
        entry = self._entries.get(session_id)
        if entry is None:
            state: dict[str, Any] = (await self._details(session_id))["session"]
            if body.reward not in (None, state["reward"]):
                raise _final(session_id)
            return state
        if body.reward is not None:
            entry.reward = body.reward
        return await self._keep(entry)

    async def _delete(self, session_id: str) -> dict[str, Any]:
        entry = self._entries.pop(session_id, None)
        if entry is None:
            await self._details(session_id)
        else:
            self._proxy.close_session(entry.session)
        await in_thread(self._kept.delete, session_id)
        return {"id": session_id, "deleted": True}

    async def _keep(self, entry: _Entry) -> dict[str, Any]:
        """End a session, move it into the store and return its state."""
        self._proxy.close_session(entry.session)
        state = _state(entry)
        await in_thread(lambda: self._kept.keep(state, _outcome(entry), _conversations(entry.session.record)))
        del self._entries[entry.id]
        return state

    async def keep_all(self) -> None:
        """End all sessions, and keep them."""
        with anyio.CancelScope(shield=True):
            async with self._changing:
                for entry in list(self._entries.values()):
                    await self._keep(entry)

    async def _trajectories(self, session_id: str) -> dict[str, Any]:
        if (entry := self._entries.get(session_id)) is not None:
            state, record = _state(entry), entry.session.record
            record.reward_roles(entry.session.role_rewards)
            conversations = await in_thread(_conversations, record)
        else:
            details, record = await self._details(session_id), await in_thread(self._kept.record, session_id)
            state, conversations = details["session"], details.get("conversations", [])
        return await in_thread(_with_trajectories, state, record, conversations)

    async def _load(self, body: WeightsBody) -> dict[str, Any]:
        if body.version <= self._engine.version:
            message = f"Version {self._engine.version} is served: new weights need a higher `version` than that, not {body.version}."
            raise ApiError(409, message, param="version", code="version_not_higher")
        try:
            await in_thread(self._check_roles, Path(body.path))
            pause_s = await self._engine.update_weights(Path(body.path), body.version)
        except (EngineError, OSError, ValueError) as error:  # ValueError: a path with a null byte in it
            raise ApiError(400, str(error), param="path", code="weights_not_loaded") from error
        return {"version": body.version, "pause_s": pause_s}

    def _check_roles(self, directory: Path) -> None:
        """Check that weights have an adapter for each role that is answered, and for no other.

        Raises:
            EngineError: They do not.
        """
        roles = [adapter_folders(directory).keys() - {""}, set(self._proxy.adapters)]
        if roles[0] != roles[1]:
            held, answered = (", ".join(sorted(names)) or "none" for names in roles)
            raise EngineError(
                f"{directory} has adapters of the roles {held}, and this service answers the roles {answered}; start another with a checkpoint "
                "of theirs as `--model`, or with `--trainer.lora.rank` and `--trainer.lora.roles`"
            )


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


def _outcome(entry: _Entry) -> Outcome:
    """Return how a session that has ended is kept: without a call or without any reward it has failed."""
    record, reason, error = entry.session.record, EndReason.FINISHED, None
    if not record.turns:
        reason, error = EndReason.NO_MODEL_CALL, "the session ended without a call of the model"
    elif entry.reward is None and not record.figures().has_turn_rewards:
        reason, error = EndReason.BAD_REWARD, "the session ended without a reward"
    return Outcome(
        reason=reason,
        error=error,
        reward=entry.reward or 0.0,
        record=record,
        started_at=entry.opened_at,
        duration_s=time.time() - entry.opened_at,
    )


def _conversations(record: TokenRecord) -> list[dict[str, Any]]:
    """Return the conversations of a session, and which of them are the main agent's."""
    turns = list(record.turns)  # a call that ends at this moment is not among them
    index_of = {turn: index for index, turn in enumerate(turns)}
    found = conversations_of(turns)
    pairs = zip(found, are_main(found), strict=True)
    return [{"main": main, "turns": [index_of[turn] for turn in one.turns]} for one, main in pairs]


def _with_trajectories(
    state: Mapping[str, Any], record: TokenRecord, conversations: list[dict[str, Any]]
) -> dict[str, Any]:
    mask_turns(record, TurnsConfig())
    returns = turn_returns(record, state["reward"] or 0.0)
    paths = [{**vars(path), "returns": path.per_token(returns)} for path in record.trajectories()]
    return {**state, "turns": record.to_json(), "trajectories": paths, "conversations": conversations}


def _final(session_id: str) -> ApiError:
    message = f"The session {session_id!r} has ended, and its record is final: rewards come before it is closed, idle too long, or the service ends or is killed."
    return ApiError(409, message, code="session_closed")
