"""An episode that has ended is what it was when it ended: what its workflow left running changes nothing of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from agentrl.config import ModelConfig, RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.episode import Episode, EpisodeState
from agentrl.errors import EpisodeError
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.open_runner import open_rollout
from agentrl.rollout.run_episode import EpisodeRunner, local_runner
from agentrl.store.outcome import Outcome
from tests.engine.scripted_server import scripted_server, sound_states
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER: Any = [{"role": "user", "content": "1 + 1 ="}]
Change = Callable[[Episode, str], Awaitable[None]]


async def ask(episode: Episode) -> str:
    reply = await episode.client.chat.completions.create(model=episode.model, messages=USER)
    return str(reply.id)


async def reward(episode: Episode, call: str) -> None:
    episode.reward(call, 7.0)


async def mark_failed(episode: Episode, call: str) -> None:
    episode.mark_failed(call)


async def log(episode: Episode, call: str) -> None:
    episode.log(late=7.0)


async def another_call(episode: Episode, call: str) -> None:
    await ask(episode)


def role_reward(episode: Episode) -> Change:
    helper = episode.role("helper")

    async def change(episode: Episode, call: str) -> None:
        helper.reward(7.0)

    return change


def state(outcome: Outcome) -> str:
    """All of it that training and charts see."""
    return json.dumps([outcome.record.to_json(), outcome.metrics, outcome.has_turn_rewards, outcome.reward])


@pytest.mark.parametrize(
    "delay_s", [0, 0.01, *(pytest.param(delay, marks=pytest.mark.soak) for delay in (0.001, 0.05))]
)
@pytest.mark.parametrize("change", [reward, role_reward, mark_failed, log, another_call])
async def test_what_comes_after_the_end_is_refused(nano_format: ChatFormat, change: Any, delay_s: float) -> None:
    refused = 0
    late: set[asyncio.Task[None]] = set()

    async def workflow(episode: Episode) -> float:
        call = await ask(episode)
        made: Change = role_reward(episode) if change is role_reward else change

        async def later() -> None:
            nonlocal refused
            await anyio.sleep(delay_s)
            while True:
                try:
                    await made(episode, call)
                except (EpisodeError, openai.APIStatusError, openai.APIConnectionError) as error:
                    refused += "ended" in str(error) or isinstance(error, openai.APIConnectionError)
                    return
                await anyio.sleep(delay_s)

        late.add(asyncio.create_task(later()))
        return 0.25

    async with (
        open_proxy(InstantEngine(), nano_format, "nano") as proxy,
        local_runner(workflow, proxy, timeout_s=10, defaults=SamplingDefaults()) as runner,
    ):
        for number in range(5):
            outcome = await runner.run({}, number)
            ended = state(outcome)
            with anyio.fail_after(60):
                await asyncio.gather(*late)
            assert state(outcome) == ended
            assert refused == number + 1


async def test_an_environment_may_not_log_while_it_is_closed_either() -> None:
    state = EpisodeState()
    episode = Episode(
        task={}, seed=0, client=openai.AsyncOpenAI(api_key="-"), base_url="", api_key="-", model="m", state=state
    )
    episode.log(steps=1)
    await state.close()
    with pytest.raises(EpisodeError, match="has ended"):
        episode.log(steps=2)
    assert episode.metrics == {"steps": 1}


async def test_the_time_in_which_no_server_is_in_service_is_none_of_the_episodes(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    reads, served = 0, anyio.Event()

    def stands_still() -> float:
        nonlocal reads
        reads += 1
        if reads > 3:  # the time is up and up again
            served.set()
        return 0.0

    async def workflow(episode: Episode) -> float:
        await served.wait()
        await ask(episode)
        return 1.0

    async with (
        open_proxy(InstantEngine(), nano_format, "nano") as proxy,
        local_runner(workflow, proxy, timeout_s=0.01, clock=stands_still) as runner,
    ):
        assert (await runner.run({}, 0)).finished
    config = RunConfig(model=ModelConfig(path=str(NANO)))
    async with (
        scripted_server(lambda _: list(sound_states(1, prompt_tokens=1))) as server,
        sglang_engine([server.url]) as engine,
        open_rollout(config, workflow, engine, logs=tmp_path, say=print) as opened,
    ):
        assert isinstance(opened, EpisodeRunner)
        assert opened.clock == engine.fleet.clock
