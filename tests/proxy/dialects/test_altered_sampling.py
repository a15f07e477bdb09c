"""Requests that change the distribution: what they ask reaches the engine, the turn is recorded so, and bad values are refused by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from agentrl.engine.protocol import Sampling
from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from agentrl.proxy.session import SamplingDefaults
from agentrl.record.recorded_choice import CallLog, RecordedChoice, recorded_choices
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
CHAT: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": "1 2 3"}]}
TEXT: dict[str, Any] = {"model": "nano", "prompt": "1 2 3"}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 9}
ALL: dict[str, Any] = {
    "top_k": 5,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.2,
    "logit_bias": {"7": -100, "5": 1.5, "9": 0},
}
RECORDED = {**ALL, "logit_bias": [[5, 1.5], [7, -100.0]]}
NEUTRAL: dict[str, Any] = {
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1,
    "logit_bias": {"5": 0},
}


class Listening(InstantEngine):
    """It keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.samplings: list[Sampling] = []

    async def generate(self, input_ids: list[int], sampling: Sampling, *args: Any, **options: Any) -> Generation:
        self.samplings.append(sampling)
        return await super().generate(input_ids, sampling, *args, **options)


@asynccontextmanager
async def opened(chat_format: ChatFormat, **options: Any) -> AsyncIterator[tuple[Listening, Proxy]]:
    engine = Listening()
    async with open_proxy(engine, chat_format, "nano", **options) as proxy:
        yield engine, proxy


async def asked(proxy: Proxy, path: str, key: str, body: dict[str, Any]) -> tuple[int, Any]:
    reply = await proxy.handle("POST", f"/v1/{path}", {"authorization": f"Bearer {key}"}, json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", TEXT)])
async def test_what_is_asked_reaches_the_engine_and_the_record(
    nano_format: ChatFormat, path: str, body: dict[str, Any]
) -> None:
    async with opened(nano_format) as (engine, proxy):
        session = proxy.open_session()
        for change in (ALL, {}, NEUTRAL, dict.fromkeys(ALL)):
            status, reply = await asked(proxy, path, session.key, {**body, **change})
            assert status == 200, reply
    altered, *plain = engine.samplings
    assert {name: getattr(altered, name) for name in ALL} == {**ALL, "logit_bias": ((5, 1.5), (7, -100.0))}
    assert (altered.altered, altered.in_one_piece) == (True, True)
    assert plain[0] == plain[1] == plain[2], "neutral values are as none"
    assert not plain[0].altered
    assert [turn.alterations for turn in session.record.turns] == [RECORDED, {}, {}, {}]


async def test_the_sdks_of_openai_and_anthropic_pass_them(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        session = proxy.open_session()
        options: dict[str, Any] = {"api_key": session.key, "max_retries": 0}
        async with (
            openai.AsyncOpenAI(base_url=proxy.base_url, **options) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, **options) as claude,
        ):
            await client.chat.completions.create(
                **CHAT, frequency_penalty=1, logit_bias={"5": 2}, extra_body={"top_k": 3, "repetition_penalty": 1.1}
            )
            await client.completions.create(**TEXT, presence_penalty=1)
            await claude.messages.create(**MESSAGES, extra_body={"top_k": 4})
    assert [turn.alterations for turn in session.record.turns] == [
        {"top_k": 3, "frequency_penalty": 1, "repetition_penalty": 1.1, "logit_bias": [[5, 2]]},
        {"presence_penalty": 1},
        {"top_k": 4},
    ]


EXACT: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.7, "seed": 3},
    {"top_p": 1},
    {"stop": ["x"], "max_tokens": 3, "n": 1},
    {"response_format": {"type": "text"}},
]
CUT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0}, {"temperature": 0}),
    ({"temperature": 0, "top_p": 0.5}, {"temperature": 0}),
    ({"top_p": 0.9}, {"top_p": 0.9}),
    ({"response_format": {"type": "json_object"}}, {"json_schema": True}),
    ({"top_k": 3, "top_p": 0.9}, {"top_p": 0.9, "top_k": 3}),
]


async def test_one_rule_says_what_is_the_policys_own_distribution_and_what_is_not(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (engine, proxy):
        engine.has_grammar = True
        session = proxy.open_session()
        for change in (*EXACT, *(asked_for for asked_for, _ in CUT)):
            assert (await asked(proxy, "chat/completions", session.key, {**CHAT, **change}))[0] == 200
        cool = proxy.open_session(SamplingDefaults(top_p=0.8))
        await asked(proxy, "chat/completions", cool.key, CHAT)
        await asked(proxy, "chat/completions", cool.key, {**CHAT, "top_p": 1})
    found = [turn.alterations for turn in session.record.turns]
    assert found == [{}] * len(EXACT) + [marked for _, marked in CUT]
    assert [turn.alterations for turn in cool.record.turns] == [{"top_p": 0.8}, {}], "whoever asked for it"
    assert [turn.temperature for turn in session.record.turns[1:3]] == [0.3, 1.7], (
        "the trainer's logprobs are taken at it"
    )


async def test_every_dialect_is_under_the_rule(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        session = proxy.open_session()
        for path, body in (
            ("completions", TEXT),
            ("messages", MESSAGES),
            ("responses", {"model": "nano", "input": "1"}),
        ):
            await asked(proxy, path, session.key, {**body, "temperature": 0})
            await asked(proxy, path, session.key, {**body, "top_p": 0.5})
    assert [turn.alterations for turn in session.record.turns] == [{"temperature": 0}, {"top_p": 0.5}] * 3


async def test_a_top_k_of_1_is_recorded_at_temperature_1_like_every_greedy_reply(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        session = proxy.open_session()
        await asked(proxy, "chat/completions", session.key, {**CHAT, "top_k": 1, "temperature": 0.5})
        await asked(proxy, "chat/completions", session.key, {**CHAT, "top_k": 2, "temperature": 0.5})
    assert [turn.temperature for turn in session.record.turns] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("min_p", -0.1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 2.5),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"hello": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1000000": 1}),
        ("logit_bias", [[5, 1]]),
    ],
)
async def test_a_value_out_of_its_range_is_refused_by_name(nano_format: ChatFormat, field: str, value: Any) -> None:
    async with opened(nano_format) as (engine, proxy):
        session = proxy.open_session()
        for path, body in (("chat/completions", CHAT), ("completions", TEXT)):
            status, reply = await asked(proxy, path, session.key, {**body, field: value})
            assert status == 400
            assert reply["error"]["param"].partition(".")[0] == field
    assert not engine.samplings


async def test_a_conversation_goes_on_from_a_turn_however_that_was_sampled(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        session = proxy.open_session()
        _, reply = await asked(proxy, "chat/completions", session.key, {**CHAT, "top_k": 5})
        said = reply["choices"][0]["message"]
        messages = [*CHAT["messages"], said, {"role": "user", "content": "4"}]
        await asked(proxy, "chat/completions", session.key, {**CHAT, "messages": messages})
    first, second = session.record.turns
    assert second.parent is first
    assert (first.alterations, second.alterations) == ({"top_k": 5}, {})
    assert TokenRecord.from_json(json.loads(json.dumps(session.record.to_json()))).to_json() == session.record.to_json()


async def test_an_episode_that_starts_over_gets_its_altered_replies_again_and_records_them_so(
    nano_format: ChatFormat,
) -> None:
    async with opened(nano_format) as (engine, proxy):
        first = proxy.open_session()
        await asked(proxy, "chat/completions", first.key, {**CHAT, **ALL})
        again = proxy.open_session(call_log=_Log(recorded_choices(first.record)))
        await asked(proxy, "chat/completions", again.key, {**CHAT, **ALL})
        assert len(engine.samplings) == 1
        other: Session = proxy.open_session(call_log=_Log(recorded_choices(first.record)))
        await asked(proxy, "chat/completions", other.key, {**CHAT, **ALL, "top_k": 6})
    assert len(engine.samplings) == 2, "another distribution is another request"
    assert again.record.to_json() == first.record.to_json()


class _Log(CallLog):
    """A call log that keeps nothing."""

    async def commit(self, choice: RecordedChoice) -> None:
        pass
