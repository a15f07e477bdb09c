"""Environments of the verifiers library, unmodified: against a model that says the right thing, and on the real engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.engine.client.sglang import sglang_engine
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.run_episode import local_runner, remote_runner
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import verifiers_env
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    # verifiers and datasets leave these behind
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
HUB = Path(__file__).parent / "hub"


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments are installed."""
    monkeypatch.syspath_prepend(str(HUB))


async def outcome_of(script: Callable[[list[dict[str, Any]]], Any], task: dict[str, Any]) -> Outcome:
    async with (
        ScriptedModel(lambda request: script(request["messages"])).serve() as url,
        remote_runner(verifiers_env.run, base_url=url, api_key="-", model="scripted", timeout_s=60) as runner,
    ):
        return await runner.run(task, 0)


async def test_a_tool_environment_with_its_rewards_and_metrics() -> None:
    seen: list[list[dict[str, Any]]] = []

    def script(messages: list[dict[str, Any]]) -> Any:
        seen.append(messages)
        if len(messages) == 1:
            return ToolCall("lookup", '{"country": "Italy"}')
        return f"It is {messages[-1]['content']}, the eternal city."

    outcome = await outcome_of(script, {"environment": "vf-capitals", "row": 1})
    assert (outcome.error, outcome.reward) == (None, 1.0)
    assert outcome.metrics["right"] == 1.0
    assert outcome.metrics["brief"] == 0.0
    assert seen[0] == [{"role": "user", "content": "What is the capital of Italy?"}]
    assert seen[1][-1]["role"] == "tool"
    brief = await outcome_of(lambda _: "Paris", {"environment": "vf-capitals", "row": 0})
    assert brief.reward == 1.5


async def test_a_bundled_environment_scores_as_it_does_by_itself() -> None:
    environment = verifiers_env.load("vf-gcd", "{}")
    entry = environment.rg_dataset[4]
    right = await outcome_of(lambda _: f"<answer>{entry['answer']}</answer>", {"environment": "vf-gcd", "row": 4})
    wrong = await outcome_of(lambda _: "<answer>-1</answer>", {"environment": "vf-gcd", "row": 4})
    assert (right.error, right.reward) == (None, 1.0)
    assert wrong.reward == environment.rg_dataset.score_answer("-1", entry)
    assert right.metrics["check_answer_reward_func"] == 1.0


async def test_what_cannot_be_loaded_fails_its_episode() -> None:
    for task, complaint in (
        ({"environment": "vf-nowhere"}, "'vf-nowhere' cannot be loaded"),
        ({"environment": "vf-gcd", "args": {"colour": 1}}, "cannot be loaded"),
    ):
        assert complaint in ((await outcome_of(lambda _: "", task)).error or "")


async def test_on_the_real_engine(any_server_url: str, nano_format: ChatFormat) -> None:
    async with sglang_engine([any_server_url]) as engine:
        tapped = Tapped(engine)
        async with open_proxy(tapped, nano_format, "nano") as proxy:
            defaults = SamplingDefaults(max_tokens=16)
            async with local_runner(verifiers_env.run, proxy, timeout_s=60, defaults=defaults) as runner:
                for name, metric in (("vf-gcd", "check_answer_reward_func"), ("vf-capitals", "right")):
                    tapped.calls.clear()
                    outcome = await runner.run({"environment": name, "row": 1}, 0)
                    assert outcome.error is None, outcome.error
                    assert metric in outcome.metrics
                    assert_record_is_what_the_engine_saw(outcome.record, tapped.calls)


def test_task_files_for_a_whole_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentrl.workflows.verifiers_env", "vf-gcd", str(tmp_path)]
    subprocess.run(
        [*command, "--args", '{"num_train_examples": 7}'],
        check=True,
        capture_output=True,
        timeout=60,
        env={"PYTHONPATH": str(HUB), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert rows[-1] == {"environment": "vf-gcd", "args": {"num_train_examples": 7}, "split": "train", "row": 6}
    assert len((tmp_path / "eval.jsonl").read_text().splitlines()) == 5
