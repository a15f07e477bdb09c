"""Environments of the verifiers library, unmodified and in a Python of their own: against a scripted model, and on the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.errors import TaskFileError
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.run_episode import local_runner, remote_runner
from agentrl.store.outcome import Outcome
from agentrl.tasks import verifiers_tasks
from agentrl.tasks.tasks import list_tasks
from agentrl.testing import Refusal, ScriptedModel
from agentrl.workflows import verifiers_env
from agentrl.workflows.verifiers_env import VerifiersTask
from tests.components import missing
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw

pytestmark = [pytest.mark.anyio, pytest.mark.soak]
HUB = Path(__file__).parent / "hub"
ARGS = {"agent": {"runtime": {"type": "subprocess"}}}
TASK = {"environment": "vf-capitals", "args": ARGS}


@pytest.fixture(scope="module", autouse=True)
def hub() -> Iterator[None]:
    """The library is installed, and the environments of the folder `hub` with it."""
    if not verifiers_tasks.PYTHON.expanduser().exists():
        missing("verifiers is not installed; install it with scripts/install_verifiers.sh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HUB))
        verifiers_tasks.server_url()
        yield
    stop_server()


def stop_server() -> None:
    assert verifiers_tasks._server is not None
    verifiers_tasks._server[0].communicate(timeout=60)  # whose stdin ends


async def outcome_of(script: Callable[[dict[str, Any]], Any], task: dict[str, Any]) -> Outcome:
    async with (
        ScriptedModel(script).serve() as url,
        remote_runner(verifiers_env.run, base_url=url, api_key="-", model="scripted", timeout_s=100) as runner,
    ):
        return await runner.run(task, 0)


def test_a_task_for_each_one_of_an_environment() -> None:
    assert list_tasks("verifiers:owner/vf-capitals") == [
        {"environment": "owner/vf-capitals", "args": {}, "row": 0},
        {"environment": "owner/vf-capitals", "args": {}, "row": 1},
    ]
    args = {"taskset": {"countries": 1}}
    assert list_tasks('verifiers:vf-capitals?{"taskset": {"countries": 1}}') == [
        {"environment": "vf-capitals", "args": args, "row": 0}
    ]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("vf-nowhere", "'vf-nowhere' cannot be loaded: .*must already be installed"),
        ("vf-capitals?{countries}", "invalid JSON: .*; write verifiers:ENV, or with"),
        ("vf-capitals?[1]", "should be an object.*; write verifiers:ENV, or with"),
        ('vf-capitals?{"taskset": {"colour": 1}}', "cannot be loaded: .*colour"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(TaskFileError, match=complaint):
        list_tasks(f"verifiers:{source}")


async def test_environments_and_rows_that_are_not_there_are_found_before_a_run() -> None:
    rows = [VerifiersTask(environment="vf-capitals", row=row) for row in (2, 1)]
    told = await VerifiersTask.missing([*rows, VerifiersTask(environment="vf-nowhere")], RunConfig())
    assert sorted(one.partition(":")[0] for one in told) == [
        "row = 2",
        "the verifiers environment 'vf-nowhere' cannot be loaded",
    ]


async def test_rewards_and_metrics_are_the_environments() -> None:
    asked: list[dict[str, Any]] = []

    def script(request: dict[str, Any]) -> str:
        asked.append(request)
        return "It is Rome, the eternal city."

    outcome = await outcome_of(script, {**TASK, "row": 1, "sampling": {"temperature": 0.5}})
    assert outcome.error is None, outcome.error
    assert outcome.reward == 1.0
    assert outcome.metrics == {"right": 1.0, "brief": 0.0, "characters": 29.0, "truncated": 0.0}
    assert asked[0]["messages"] == [{"role": "user", "content": "What is the capital of Italy?"}]
    assert asked[0]["temperature"] == 0.5
    assert (await outcome_of(lambda _: "Paris", {**TASK, "row": 0})).reward == 1.5


async def test_an_environment_that_fails_is_a_failed_episode_and_no_reward() -> None:
    outcome = await outcome_of(lambda _: Refusal(500), TASK)
    assert not outcome.finished
    assert "the verifiers environment 'vf-capitals' failed: " in (outcome.error or "")
    assert "refused by the script" in (outcome.error or "")


async def test_a_server_that_has_ended_is_started_again() -> None:
    await in_thread(stop_server)
    assert (await outcome_of(lambda _: "Paris", TASK)).reward == 1.5


async def test_on_the_real_engine(any_server_url: str, nano_format: ChatFormat) -> None:
    async with sglang_engine([any_server_url]) as engine:
        tapped = Tapped(engine)
        async with open_proxy(tapped, nano_format, "nano") as proxy:
            defaults = SamplingDefaults(max_tokens=16)
            async with local_runner(verifiers_env.run, proxy, timeout_s=100, defaults=defaults) as runner:
                outcome = await runner.run({**TASK, "row": 1}, 0)
    assert outcome.error is None, outcome.error
    assert outcome.metrics["right"] == 0.0
    assert_record_is_what_the_engine_saw(outcome.record, tapped.calls)
