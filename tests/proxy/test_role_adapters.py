"""Roles with adapters of their own: each call names its role's adapter, and a call of no such role is refused before it is answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.engine.protocol import Sampling
from agentrl.episode import Episode
from agentrl.proxy import ChatFormat, Proxy, SamplingDefaults, open_proxy
from agentrl.proxy.limits import ProxyLimits
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.run_episode import local_runner
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER: list[Any] = [{"role": "user", "content": "1 2 3"}]
ADAPTERS = ("writer", "critic")


class Noting(InstantEngine):
    """An engine that notes which adapter it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def generate(self, ids: list[int], sampling: Sampling, *args: Any, **options: Any) -> Generation:
        self.asked.append(options["adapter"])
        return await super().generate(ids, sampling, *args, **options)


@asynccontextmanager
async def opened(
    chat_format: ChatFormat, adapters: tuple[str, ...], **limits: Any
) -> AsyncIterator[tuple[Noting, Proxy]]:
    engine = Noting()
    async with open_proxy(
        engine, chat_format, "nano", limits=ProxyLimits(**limits), training=True, adapters=adapters
    ) as proxy:
        yield engine, proxy


async def asked(proxy: Proxy, key: str, model: str = "nano", path: str = "chat/completions") -> tuple[int, Any]:
    body = {"model": model, "messages": USER} | ({"max_tokens": 9} if path == "messages" else {})
    body = {"model": model, "input": "1 2 3"} if path == "responses" else body
    body = {"model": model, "prompt": "1 2 3", "max_tokens": 9} if path == "completions" else body
    reply = await proxy.handle("POST", f"/v1/{path}", {"authorization": f"Bearer {key}"}, json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
async def test_a_call_is_answered_by_the_adapter_of_its_role_in_every_dialect(
    path: str, nano_format: ChatFormat
) -> None:
    async with opened(nano_format, ADAPTERS) as (engine, proxy):
        session = proxy.open_session()
        assert (await asked(proxy, f"{session.key}.writer", path=path))[0] == 200
        assert (await asked(proxy, f"{session.key}.critic", path=path))[0] == 200
        status, reply = await asked(proxy, session.key, path=path)
        assert status == 400
        assert "the call names no role, and must be one of `trainer.lora.roles`: writer, critic" in json.dumps(reply)
        assert 'episode.role(\\"NAME\\")' in json.dumps(reply)
        status, reply = await asked(proxy, f"{session.key}.judge", path=path)
        assert status == 400
        assert "'judge' is none of `trainer.lora.roles`: writer, critic" in json.dumps(reply)
    assert engine.asked == ["writer", "critic"]
    turns = TokenRecord.from_json(session.record.to_json()).turns
    assert [(turn.role, turn.adapter) for turn in turns] == [(name, name) for name in engine.asked]


async def test_without_such_roles_no_call_names_an_adapter(nano_format: ChatFormat) -> None:
    async with opened(nano_format, ()) as (engine, proxy):
        session = proxy.open_session()
        assert (await asked(proxy, session.key))[0] == (await asked(proxy, f"{session.key}.judge"))[0] == 200
    assert engine.asked == ["", ""]
    assert {turn.adapter for turn in session.record.turns} == {""}


async def test_a_workflow_learns_at_once_that_a_role_has_no_adapter(nano_format: ChatFormat) -> None:
    async def run(episode: Episode) -> float:
        writer = episode.role("writer")
        await writer.client.chat.completions.create(model=writer.model, messages=USER)
        episode.role("judge")
        return 1.0

    async with (
        opened(nano_format, ADAPTERS) as (engine, proxy),
        local_runner(run, proxy, timeout_s=30, defaults=SamplingDefaults(max_tokens=4)) as runner,
    ):
        outcome = await runner.run({}, 0)
    assert outcome.error is not None
    assert "EpisodeError: 'judge' is none of `trainer.lora.roles`: writer, critic; name it there too" in outcome.error
    assert engine.asked == ["writer"]


async def test_a_sub_agent_under_a_role_of_its_own_teaches_the_adapter_that_answered_it(
    nano_format: ChatFormat,
) -> None:
    async def run(episode: Episode) -> float:
        episode.trajectories = lambda root: "helper"
        writer = episode.role("writer")
        await writer.client.chat.completions.create(model=writer.model, messages=USER)
        return 1.0

    async with (
        opened(nano_format, ADAPTERS) as (_, proxy),
        local_runner(run, proxy, timeout_s=30, defaults=SamplingDefaults(max_tokens=4)) as runner,
    ):
        outcome = await runner.run({}, 0)
    assert outcome.error is None, outcome.error
    assert [(turn.role, turn.adapter) for turn in outcome.record.turns] == [("helper", "writer")]
