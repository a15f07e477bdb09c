"""The token record's invariant, on random conversations against the running engine.

Along any path, the recorded ids are what the engine was sent plus what it returned, and every token re-scored under the
weights of its version has the recorded logprob, also where a weight update interrupted the reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from agentrl.engine.client import sglang_engine
from agentrl.engine.protocol import Sampling
from agentrl.envs.calculator_env import TOOL
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, open_proxy
from agentrl.proxy.http_messages import InProcessTransport
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.run_episode import IN_PROCESS_URL
from agentrl.system.tasks import Condition
from tests.conftest import start_server, stop_server
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw
from tests.rescoring import Rescorer

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def own_server() -> Iterator[str]:
    """A server whose weights this module may change."""
    process, url = start_server(NANO)
    yield url
    assert stop_server(process) == 0


@pytest.fixture(scope="module")
def rescorer(versions: list[Path]) -> Rescorer:
    return Rescorer(versions)


MOVES = st.lists(
    st.fixed_dictionaries(
        {
            "move": st.sampled_from(["say", "say", "say", "branch", "edit"]),
            "text": st.text("0123456789 +-=?az\n", min_size=1, max_size=12),
            "where": st.integers(0, 100),
            "tools": st.sampled_from([True, True, True, False]),
            "n": st.sampled_from([1, 1, 1, 2]),
            "stream": st.booleans(),
            "max_tokens": st.integers(1, 40),
            "temperature": st.sampled_from([0.7, 1.0, 1.3]),
            "top_p": st.sampled_from([1.0, 1.0, 0.8]),
            "stop": st.sampled_from([None, None, "5", " +"]),
            "update": st.sampled_from([None, None, "retract", "abort"]),
        }
    ),
    min_size=1,
    max_size=6,
)


async def ask(client: AsyncOpenAI, messages: list[Any], move: dict[str, Any]) -> list[Any]:
    """The assistant messages of one request."""
    options: dict[str, Any] = {
        "model": "nano",
        "messages": messages,
        "n": move["n"],
        **{name: move[name] for name in ("max_tokens", "temperature", "top_p", "stop")},
    }
    if move["tools"]:
        options["tools"] = [TOOL]
    if not (move["stream"] and move["n"] == 1):
        reply = await client.chat.completions.create(**options)
        return [choice.message.model_dump(exclude_none=True) for choice in reply.choices]
    content, calls = "", []
    async for chunk in await client.chat.completions.create(stream=True, **options):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                if call.id:
                    calls.append(call.model_dump(exclude_none=True, exclude={"index"}))
                else:
                    calls[call.index]["function"]["arguments"] += call.function.arguments
    return [{"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}]


async def converse(
    url: str, chat_format: ChatFormat, versions: list[Path], moves: list[dict[str, Any]]
) -> tuple[TokenRecord, list[tuple[list[int], Generation]]]:
    """Play `moves`; the record, and what the engine was sent and returned."""
    async with sglang_engine([url]) as raw:
        engine = Tapped(raw)
        async with open_proxy(engine, chat_format, "nano") as proxy:
            session = proxy.open_session()
            transport = InProcessTransport(proxy.handle)
            async with httpx2.AsyncClient(transport=transport, base_url=IN_PROCESS_URL, timeout=60) as http:
                client = AsyncOpenAI(api_key=session.key, base_url=IN_PROCESS_URL, http_client=http, max_retries=0)
                messages: list[Any] = []
                for move in moves:
                    if move["move"] == "branch" and messages:
                        messages = messages[: move["where"] % len(messages)]
                    if move["move"] == "edit" and messages:
                        messages = [{**messages[0], "content": move["text"]}, *messages[1:]]
                    messages = [*messages, {"role": "user", "content": move["text"]}]
                    replies: list[Any] = []

                    async def request(messages: list[Any], move: dict[str, Any], replies: list[Any]) -> None:
                        replies += await ask(client, messages, move)

                    async with anyio.create_task_group() as group:
                        group.start_soon(request, messages, move, replies)
                        if move["update"]:
                            await anyio.sleep(0.012)
                            raw.pause_mode = move["update"]
                            version = (raw.version + 1) % len(versions)
                            await raw.update_weights(versions[version], version)
                    reply = replies[move["where"] % len(replies)]
                    messages = [*messages, reply]
                    for call in reply.get("tool_calls", []):
                        messages.append({"role": "tool", "tool_call_id": call["id"], "content": move["text"]})
            proxy.close_session(session)
            return session.record, engine.calls


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_the_record_is_what_the_engine_saw_and_rescoring_reproduces_its_logprobs(
    own_server: str, nano_format: ChatFormat, versions: list[Path], rescorer: Rescorer, moves: list[dict[str, Any]]
) -> None:
    check_record(own_server, nano_format, versions, rescorer, moves)


@pytest.mark.soak
@pytest.mark.timeout(600)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_of_many_more_conversations_the_record_is_what_the_engine_saw_too(
    own_server: str, nano_format: ChatFormat, versions: list[Path], rescorer: Rescorer, moves: list[dict[str, Any]]
) -> None:
    check_record(own_server, nano_format, versions, rescorer, moves)


def check_record(
    url: str, nano_format: ChatFormat, versions: list[Path], rescorer: Rescorer, moves: list[dict[str, Any]]
) -> None:
    record, calls = anyio.run(converse, url, nano_format, versions, moves)

    assert_record_is_what_the_engine_saw(record, calls)
    assert rescorer.largest_difference(record) < TOLERANCE

    trained = 0
    for path in record.trajectories():
        trained += sum(path.loss_mask)
        assert len({len(column) for column in vars(path).values() if isinstance(column, list)}) == 1
    assert trained == sum(len(turn.output_ids) for turn in record.turns)
    assert TokenRecord.from_json(record.to_json()).to_json() == record.to_json()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["retract", pytest.param("abort", marks=pytest.mark.soak)])
async def test_a_long_reply_survives_many_updates_with_exact_logprobs(
    own_server: str, versions: list[Path], rescorer: Rescorer, mode: Any
) -> None:
    async with sglang_engine([own_server], pause_mode=mode) as engine:
        await engine.update_weights(versions[0], 0)
        results: list[tuple[list[int], Generation]] = []
        grown, most = Condition(), 400

        async def one(start: int) -> None:
            prompt = [1, 2, 3, start]
            sampling = Sampling(max_new_tokens=most)
            reply = await engine.generate(prompt, sampling, f"s{start}", lambda _: grown.notify_all())
            results.append((prompt, reply))
            grown.notify_all()

        async with anyio.create_task_group() as group:
            for start in range(10, 22):
                group.start_soon(one, start)
            for version in (1, 2, 3, 1, 2, 3):
                if len(results) < 12:
                    await grown.wait()
                await engine.update_weights(versions[version], version)

    assert len(results) == 12
    assert max(len(generation.versions) for _, generation in results) >= 3
    record = TokenRecord()
    for prompt, generation in results:
        assert generation.finish == "stop" or len(generation.output_ids) == most
        record.add("id", None, prompt, generation, 1.0)
    assert rescorer.largest_difference(record) < TOLERANCE


def generation(*ids: int, version: int = 0) -> Generation:
    spans = [VersionSpan(version, 0, len(ids))]
    return Generation(output_ids=list(ids), logprobs=[-0.5] * len(ids), versions=spans, finish="stop")


def test_shared_prefixes_are_stored_once_and_trained_on_once() -> None:
    record = TokenRecord()
    root = record.add("a", None, [1, 2], generation(3), 1.0)
    record.add("b", root, [1, 2, 3, 4], generation(5, version=1), 0.5)
    record.add("c", root, [1, 2, 3, 6], generation(7, 8, version=2), 1.0)

    first, second = record.trajectories()

    assert [turn.prompt_ids for turn in record.turns] == [[1, 2], [4], [6]]
    assert (first.token_ids, first.loss_mask) == ([1, 2, 3, 4, 5], [False, False, True, False, True])
    assert (second.token_ids, second.loss_mask) == ([1, 2, 3, 6, 7, 8], [False] * 4 + [True, True])
    assert first.versions == [-1, -1, 0, -1, 1]
    assert first.temperatures == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_every_token_knows_its_turn_in_the_record() -> None:
    record = TokenRecord()
    root = record.add("a", None, [1], generation(2), 1.0)
    record.add("b", root, [1, 2, 3], generation(4), 1.0)
    record.add("c", root, [1, 2, 5], generation(6), 1.0)
    first, second = record.trajectories()
    assert (first.turn_index, second.turn_index) == ([0, 0, 1, 1], [0, 0, 2, 2])
    assert second.per_token([2.0, -1.0, 0.5]) == [2.0, 2.0, 0.5, 0.5]


def test_a_role_that_is_not_trained_is_masked_and_still_shared() -> None:
    record = TokenRecord()
    root = record.add("a", None, [1], generation(2), 1.0)
    record.add("b", root, [1, 2, 3], generation(4), 1.0)
    root.trained = False
    (path,) = TokenRecord.from_json(record.to_json()).trajectories()
    assert path.loss_mask == [False, False, False, True]


def test_a_prompt_that_does_not_extend_its_parent_is_refused() -> None:
    record = TokenRecord()
    root = record.add("a", None, [1], generation(2), 1.0)
    with pytest.raises(ValueError, match="do not extend"):
        record.add("b", root, [1, 9, 3], generation(4), 1.0)


def test_a_trajectory_of_thousands_of_tokens_is_shown_in_a_line() -> None:
    record, ids = TokenRecord(), list(range(4000))
    spans = [VersionSpan(3, 0, 1000), VersionSpan(4, 1000, 2000)]
    reply = Generation(output_ids=ids[2000:], logprobs=[-0.5] * 2000, versions=spans, finish="stop")
    record.add("a", None, ids[:2000], reply, 1.0)
    (trajectory,) = record.trajectories()
    assert repr(trajectory) == "<Trajectory of 4000 tokens, 2000 trained, turns: 1, versions: [3, 4]>"
    assert repr(record) == "<TokenRecord: 1 turns, 1 trajectories, 2000 tokens sampled>"
    assert repr(record.turns[0]) == "<Turn a: 2000 ids asked, 2000 sampled>"
