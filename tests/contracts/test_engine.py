"""The contract of `agentrl.engine.protocol.UpdatableEngine`, kept by the client of the embedded server and of SGLang's.

Run it on an engine of yours, which serves the nano model:
AGENTRL_ENGINE=my_package:open_my_engine python -m pytest tests/contracts/test_engine.py
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.engine.client import sglang_engine
from agentrl.engine.protocol import Engine, Sampling, UpdatableEngine
from agentrl.models import NANO
from agentrl.record.soundness import Expected, fault_of
from agentrl.record.tokens import Generation
from agentrl.system.imports import load_object

pytestmark = pytest.mark.anyio
PROMPT = [1, 20, 30, 40]
LONG = 300
"""Tokens of a reply that can be interrupted."""
KINDS = [
    "yours" if "AGENTRL_ENGINE" in os.environ else "server_url",
    pytest.param("sglang_url", marks=pytest.mark.soak),
]


@pytest.fixture(params=KINDS)
def unopened(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[UpdatableEngine]:
    """An engine, whose server is started outside the event loop."""
    if request.param == "yours":
        return cast(AbstractAsyncContextManager[UpdatableEngine], load_object(os.environ["AGENTRL_ENGINE"])())
    return sglang_engine([request.getfixturevalue(request.param)])


@pytest.fixture
async def engine(unopened: AbstractAsyncContextManager[UpdatableEngine]) -> AsyncIterator[UpdatableEngine]:
    async with unopened as engine:
        yield engine


async def reply_of(
    engine: Engine,
    count: int = 8,
    *,
    session: str = "test",
    on_progress: Callable[[list[int]], None] | None = None,
    **options: Any,
) -> Generation:
    """A reply, which is sound whatever is asked of it."""
    sampling = Sampling(max_new_tokens=count, **options)
    generation = await engine.generate(PROMPT, sampling, session, on_progress)
    engine.end_session(session)
    expected = Expected(max_new_tokens=count, vocabulary=engine.vocabulary, top_logprobs=sampling.top_logprobs)
    assert fault_of(generation, expected) is None
    return generation


async def test_a_reply_names_the_version_that_the_engine_says_it_serves(engine: Engine) -> None:
    await engine.health()
    assert {span.version for span in (await reply_of(engine)).versions} == {engine.version}


@pytest.mark.parametrize("temperature", [0.5, 1.7])
async def test_logprobs_are_those_of_a_forward_pass_at_the_temperature(engine: Engine, temperature: float) -> None:
    generation = await reply_of(engine, temperature=temperature)
    model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + generation.output_ids])).logits[0, len(PROMPT) - 1 : -1]
    scored = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(generation.output_ids)[:, None])
    assert generation.logprobs == pytest.approx(scored[:, 0].tolist(), abs=1e-3)


async def test_temperature_0_is_greedy_and_a_reply_ends_with_its_first_stop_token(engine: Engine) -> None:
    free, again = [await reply_of(engine, 16, temperature=0) for _ in range(2)]
    assert free.output_ids == again.output_ids
    token = free.output_ids[8]
    stopped = await reply_of(engine, 16, temperature=0, stop_token_ids=[token])
    assert stopped.output_ids == free.output_ids[: free.output_ids.index(token) + 1]
    assert stopped.finish == "stop"


async def test_top_p_draws_from_the_likeliest_and_reports_logprobs_before_the_cut(engine: Engine) -> None:
    greedy, cut = await reply_of(engine, 1, temperature=0), await reply_of(engine, 1, top_p=1e-6, top_logprobs=3)
    assert cut.output_ids == greedy.output_ids
    assert cut.logprobs[0] < 0
    assert cut.top_logprobs[0][0] == pytest.approx((cut.logprobs[0], cut.output_ids[0]), abs=1e-3)


async def test_a_reply_keeps_the_ids_that_it_has_shown(engine: Engine) -> None:
    shown: list[list[int]] = []
    generation = await reply_of(engine, LONG, on_progress=lambda ids: shown.append(list(ids)))
    assert shown == [generation.output_ids[: len(ids)] for ids in shown]
    assert sorted(map(len, shown)) == list(map(len, shown))


async def test_a_call_that_is_cancelled_leaves_the_engine_free_for_others(engine: Engine) -> None:
    grown = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: reply_of(engine, LONG, session="cancelled", on_progress=lambda _: grown.set()))
        await grown.wait()
        group.cancel_scope.cancel()
    replies: list[Generation] = []

    async def ask(index: int) -> None:
        replies.append(await reply_of(engine, session=f"many-{index % 8}"))

    async with anyio.create_task_group() as group:
        for index in range(64):
            group.start_soon(ask, index)
    assert len(replies) == 64


async def test_a_paused_engine_holds_its_replies_until_it_is_resumed(engine: UpdatableEngine) -> None:
    replies: list[Generation] = []

    async def ask() -> None:
        replies.append(await reply_of(engine, 4))

    async with anyio.create_task_group() as group:
        await engine.pause("retract")
        group.start_soon(ask)
        await anyio.sleep(0.3)
        assert not replies
        await engine.resume()
    assert len(replies) == 1


async def test_replies_in_flight_go_on_under_new_weights_and_say_where(
    engine: UpdatableEngine, versions: list[Path]
) -> None:
    before, grown = engine.version, anyio.Event()
    replies: list[Generation] = []

    async def ask(index: int) -> None:
        session = f"update-{index}"
        replies.append(await reply_of(engine, LONG, session=session, on_progress=lambda _: grown.set()))

    async with anyio.create_task_group() as group:
        for index in range(8):
            group.start_soon(ask, index)
        await grown.wait()
        await engine.update_weights(versions[1], before + 1)
        assert engine.version == before + 1
    assert {span.version for reply in replies for span in reply.versions} == {before, before + 1}
    assert {span.version for span in (await reply_of(engine)).versions} == {before + 1}
    await engine.update_weights(versions[0], before)
