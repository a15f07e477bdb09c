"""docs/examples/: the workflows of its pages, played as they stand there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.run_episode import local_runner, remote_runner
from agentrl.rollout.workflow import Workflow, load_workflow
from agentrl.store.outcome import Outcome
from agentrl.testing import ScriptedModel, ToolCall
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
TASK = {"wish": "Keep Emma.", "loans": {"Emma": 10, "Ulysses": 4}, "wanted": {"Emma": 17, "Ulysses": 4}}


def workflow_of(page: str, folder: Path) -> Workflow:
    found = re.findall(r'^```python title="(.*?)"\n(.*?)^```$', (EXAMPLES / page).read_text(), re.MULTILINE | re.DOTALL)
    [(name, code)] = found
    (folder / name).write_text(code)
    return load_workflow(folder / name)


@pytest.fixture
def self_play(tmp_path: Path) -> Workflow:
    return workflow_of("self_play.md", tmp_path)


@pytest.fixture
def simulated_user(tmp_path: Path) -> Workflow:
    return workflow_of("simulated_user.md", tmp_path)


@pytest.fixture
def self_correction(tmp_path: Path) -> Workflow:
    return workflow_of("self_correction.md", tmp_path)


async def played(workflow: Workflow, script: Callable[[list[dict[str, Any]]], Any], task: dict[str, Any]) -> Outcome:
    async with (
        ScriptedModel(lambda request: script(request["messages"])).serve() as url,
        remote_runner(workflow, base_url=url, api_key="-", model="scripted", timeout_s=60) as runner,
    ):
        return await runner.run(task, 0)


@pytest.mark.parametrize(
    ("moves", "reward"),
    [(("3", "3", "take 1", "3"), -1.0), (("9",), -1.0), (("2", "none"), 1.0), (("3", "1", "3", "1", "2"), 1.0)],
)
async def test_a_game_against_oneself_has_a_winner(moves: tuple[str, ...], reward: float, self_play: Workflow) -> None:
    left = list(moves)
    outcome = await played(self_play, lambda _: left.pop(0), {"stones": 10})
    assert (outcome.error, outcome.reward, outcome.metrics) == (None, reward, {"moves": float(len(moves))})


async def test_each_seat_has_the_reward_of_its_own(nano_format: ChatFormat, self_play: Workflow) -> None:
    async with (
        open_proxy(ScriptedEngine(), nano_format, model="nano") as proxy,
        local_runner(self_play, proxy, timeout_s=60, defaults=SamplingDefaults(max_tokens=8)) as runner,
    ):
        outcome = await runner.run({"stones": 10}, 0)
    seats = {turn.role: turn.role_reward for turn in outcome.record.turns}
    assert seats == {"first": outcome.reward} | ({"second": -outcome.reward} if len(seats) > 1 else {})


@pytest.mark.parametrize(("book", "reward"), [("Emma", 1.0), ("Ulysses", 0.0)])
async def test_an_agent_that_serves_the_simulated_user_earns_the_reward(
    book: str, reward: float, simulated_user: Workflow
) -> None:
    def script(messages: list[dict[str, Any]]) -> Any:
        last = str(messages[-1]["content"])
        if "customer of a library" in messages[0]["content"]:
            return "END" if "settled" in last else "My book, please."
        assert TASK["wish"] not in str(messages)
        return "It is settled." if messages[-1]["role"] == "tool" else ToolCall("extend", f'{{"book": "{book}"}}')

    outcome = await played(simulated_user, script, TASK)
    assert (outcome.error, outcome.reward) == (None, reward)


async def test_the_simulated_user_is_recorded_and_not_trained_on(
    nano_format: ChatFormat, simulated_user: Workflow
) -> None:
    async with (
        open_proxy(ScriptedEngine(), nano_format, model="nano") as proxy,
        local_runner(simulated_user, proxy, timeout_s=60, defaults=SamplingDefaults(max_tokens=8)) as runner,
    ):
        outcome = await runner.run(TASK, 0)
    assert (outcome.error, outcome.reward) == (None, 0.0)
    turns = Counter((turn.role, turn.trained) for turn in outcome.record.turns)
    assert turns == {("", True): 12, ("user", False): 13}


async def test_a_wrong_answer_is_answered_with_try_again(self_correction: Workflow) -> None:
    seen: list[list[dict[str, Any]]] = []

    def script(messages: list[dict[str, Any]]) -> str:
        seen.append(messages)
        return "4" if len(seen) < 2 else "5"

    task = {"prompt": "2 + 3?", "answer": "5"}
    outcome = await played(self_correction, script, task)
    assert (outcome.error, outcome.reward, outcome.metrics) == (None, 1.0, {"attempts": 2.0})
    assert [message["role"] for message in seen[1]] == ["user", "assistant", "user"]
    assert (await played(self_correction, lambda _: "4", task)).metrics == {"attempts": 3.0}
