"""A line warns when a run is not healthy, says why and what to do; a run that learns nothing is never silent."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl import Episode
from agentrl.config import RunConfig
from agentrl.errors import EngineError, error_line, one_line
from agentrl.proxy import ChatFormat
from agentrl.rollout.controller import Batch, Controller
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.health import REWARD_BLOCK, Conversations, Health, HealthCounts, RewardBlock
from agentrl.rollout.rewards import EndedGroup
from agentrl.rollout.store import Store
from agentrl.rollout.tasks import TaskList
from agentrl.rollout.workflow import Workflow
from agentrl.run import alarm_watch as alarm_watch_module
from agentrl.run.alarm_watch import AlarmWatch
from agentrl.run.alarms import AlarmLog, current_alarms
from agentrl.run.training_loop import _step
from tests.components import wait_until
from tests.rollout.test_controller import TASKS, runner_of

HEALTHY: dict[str, Any] = {
    "step": {
        "logprob_mismatch_mean_abs": 1e-4,
        "importance_weight_p01": 0.8,
        "importance_weight_p99": 1.3,
        "staleness_max": 3.0,
        "entropy": 0.5,
    },
    "zero_gradients": 2,
    "uniform_groups": 15,
    "failures": 7,
    "failure": "ValueError: no",
    "replies": 256,
    "truncated": 200,
    "with_tools": 256,
    "tool_calls": 1,
    "best_rewards": RewardBlock(0.9, 0.1),
    "last_rewards": RewardBlock(0.8, 0.1),
    "quiet_s": 599.0,
}


def test_a_healthy_run_says_nothing() -> None:
    assert list(current_alarms(Health(**HEALTHY), RunConfig(), 3)) == []
    assert list(current_alarms(Health(), RunConfig(), None)) == []


@pytest.mark.parametrize(
    ("name", "changed", "parts"),
    [
        (
            "altered_sampling",
            {"altered": 64, "altered_by": ["logit_bias", "top_k"]},
            ["25% of the last 256 replies are not trained on", "logit_bias, top_k", "trainer.turns.altered_sampling"],
        ),
        (
            "rewards_equal",
            {"uniform_groups": 16, "uniform_reward": 0.0},
            ["the last 16 groups", "all of them 0:", "replay"],
        ),
        (
            "rewards_equal",
            {"uniform_groups": 16, "uniform_reward": 1.0, "highest_reward": 1.0, "episode": 7},
            ["all of them 1:", "if the tasks are solved, end the run here", "agentrl replay runs/x 7"],
        ),
        (
            "rewards_equal",
            {"uniform_groups": 16, "uniform_reward": 0.5, "highest_reward": 1.0},
            ["too hard or too easy for this model"],
        ),
        ("rewards_equal", {"uniform_groups": 40}, ["the last 40 groups had equal rewards within each group: "]),
        (
            "no_tool_call",
            {"tool_calls": 0, "example": "I'd say 4"},
            ["none of the last 256", "model.renderer", "I'd say 4"],
        ),
        (
            "history_rewritten",
            {"conversations": Conversations(episodes=16, turns=80, roots=72, prompt_tokens=100, rerendered_tokens=60)},
            ["90% of the model calls of the last 16 episodes", "60% of their prompt tokens", "docs/clients.md"],
        ),
        ("replies_truncated", {"truncated": 256}, ["100% of the last 256 replies", "rollout.max_tokens"]),
        ("same_failure", {"failures": 8}, ["the last 8 attempts", "ValueError: no"]),
        ("stalled", {"quiet_s": 660.0, "waiting_for": "the moon"}, ["for 11 min", "waits for the moon"]),
        ("reward_falls", {"last_rewards": RewardBlock(0.4, 0.1)}, ["fell from 0.900 to 0.400", "trainer.optimizer.lr"]),
        ("gradient_zero", {"zero_gradients": 3}, ["the gradient was 0 in the last 3 steps"]),
        ("entropy_gone", {"step": {"entropy": 1e-5}}, ["the entropy is 1e-05 nats"]),
        ("mismatch", {"step": {"logprob_mismatch_mean_abs": 0.05}}, ["differ by 0.05 in mean |Δlogprob|"]),
        ("weights", {"step": {"importance_weight_p99": 2.5}}, ["p/b is 1.00 to 2.50 for 98 % of the tokens"]),
        ("weights", {"step": {"importance_weight_p01": 0.3}}, ["p/b is 0.30 to 1.00 for 98 % of the tokens"]),
        ("staleness", {"step": {"staleness_max": 4.0}}, ["a token is 4 versions old, and the bound is 3"]),
    ],
)
def test_each_fault_has_its_line(name: str, changed: dict[str, Any], parts: list[str]) -> None:
    (alarm,) = current_alarms(Health(**{**HEALTHY, **changed}), RunConfig(run_dir="runs/x"), 3)
    assert alarm.name == name
    assert "\n" not in alarm.text
    assert not re.search(r"[.?!][.?!]|[a-z] Look", alarm.text)
    for part in parts:
        assert part in alarm.text


@pytest.mark.parametrize(
    "said",
    [
        Conversations(episodes=15, turns=80, roots=72, prompt_tokens=100, rerendered_tokens=60),
        Conversations(episodes=16, turns=80, roots=40, prompt_tokens=100, rerendered_tokens=60),
        Conversations(episodes=16, turns=80, roots=72, prompt_tokens=100, rerendered_tokens=20),
        Conversations(episodes=40, turns=80, roots=80, prompt_tokens=100, rerendered_tokens=60),
    ],
    ids=["too few", "conversations go on", "little is sent again", "two questions each"],
)
def test_a_client_that_lets_conversations_go_on_raises_no_alarm(said: Conversations) -> None:
    assert list(current_alarms(Health(conversations=said), RunConfig(), None)) == []


def test_a_run_with_a_teacher_or_single_episodes_needs_no_rewards() -> None:
    equal = Health(uniform_groups=100)
    single = {"rollout": {"batch_size": 8, "group_size": 1}, "trainer": {"advantage": "rloo"}}
    taught = {"trainer": {"teacher": {"url": "http://127.0.0.1:1"}}}
    for content in (single, taught):
        assert list(current_alarms(equal, RunConfig.model_validate(content), None)) == []


def test_an_alarm_is_said_when_it_begins_rarely_while_it_lasts_and_counted() -> None:
    said: list[str] = []
    log = AlarmLog(said.append, repeat_s=600)
    holding = list(current_alarms(Health(failures=9, failure="KeyError: 1"), RunConfig(), None))
    for now in range(0, 1300, 10):
        log.update(holding, f"step {now}", now)
    assert [line.split(":")[0] for line in said] == ["ALARM, step 0", "ALARM, step 600", "ALARM, step 1200"]
    assert log.to_metrics() == {"alarm_same_failure": 1}
    for now in range(1300, 1400, 10):  # it comes and goes
        log.update(holding if now % 20 else [], "later", now)
    assert len(said) == 3
    assert log.to_metrics() == {"alarm_same_failure": 1 + 5}


def test_rewards_that_fall_are_seen_in_blocks() -> None:
    counts = HealthCounts()
    for block, mean in enumerate([0.5, 0.9, 0.6]):
        counts.rewards_counted(EndedGroup(block, [mean + 0.1 * (-1) ** i], 0) for i in range(REWARD_BLOCK))
    (alarm,) = current_alarms(counts.snapshot(str, ""), RunConfig(), None)
    assert "fell from 0.900 to 0.600" in alarm.text


def test_foreign_text_becomes_one_bounded_line() -> None:
    class UnshowableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert one_line("a\n b\x1b[31m\ud800") == "a b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert len(one_line("x" * 10**7)) == 400
    assert one_line(UnshowableError()) == "a UnshowableError that cannot be shown"
    trace = 'Traceback (most recent call last):\n  File "w.py", line 1, in run\n    x\nValueError: one\ntwo\n'
    assert error_line(trace) == "ValueError: one"
    assert error_line("") == ""


async def alarms_of(
    workflow: Workflow, wanted: str, url: str, chat_format: ChatFormat, path: Path, **rollout: Any
) -> list[str]:
    """What a run says in which no training step ever comes, until `wanted` is said."""
    settings = {"batch_size": 4, "group_size": 2, "max_concurrent": 8, "retries": 0, "max_failed_share": 1.0, **rollout}
    config = RunConfig.model_validate({"run_dir": str(path), "rollout": settings})
    said: list[str] = []
    with await in_thread(Store, path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        async with runner_of(workflow, url, chat_format) as runner:
            assert runner.proxy is not None
            gate = StalenessGate(groups_per_batch=2, max_staleness=20, order="fifo")
            controller = Controller(TaskList(TASKS), config.rollout, 0, runner, store, gate)
            engine: Any = runner.proxy.engine
            alarm_watch = AlarmWatch(
                config,
                controller,
                AlarmLog(said.append),
                in_flight=lambda: engine.in_flight,
                serving=lambda: engine.serving,
                decode=chat_format.decode,
            )
            async with anyio.create_task_group() as group:
                group.start_soon(controller.run)
                group.start_soon(alarm_watch.watch)
                await wait_until(lambda: any(wanted in line for line in said), 60)
                group.cancel_scope.cancel()
    return said


@pytest.mark.anyio
async def test_a_stalled_run_names_what_its_main_loop_waits_for() -> None:
    """Looked at from within the trainer's step, and then from within the update of the weights, which fails."""
    health = HealthCounts()
    looks: list[str] = []

    async def trains(*_: object) -> Any:
        looks.append(alarm_watch.waiting_for())
        return {"skipped_optimizer_steps": 0}

    async def loads(*_: object) -> Any:
        looks.append(alarm_watch.waiting_for())
        raise EngineError("went silent")

    parts: Any = SimpleNamespace(
        controller=SimpleNamespace(health=health, progress=SimpleNamespace(running=0)),
        trainer=SimpleNamespace(step=trains, weights=SimpleNamespace(path="v1", version=1)),
        engine=SimpleNamespace(update_weights=loads),
        broadcast=None,
    )
    alarm_watch = AlarmWatch(RunConfig(), parts.controller, AlarmLog(looks.append), lambda: 0, lambda: ["one"], str)
    before = alarm_watch.waiting_for()
    with pytest.raises(EngineError):
        await _step(parts, Batch([1], [0.0]), 0.0)
    assert looks == [
        "the trainer's step (trainer.log), for 0 s now",
        "the inference servers to load the new weights (engine.log), for 0 s now",
    ]
    assert alarm_watch.waiting_for() == before == "groups to start"


TOOLS: list[Any] = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]


async def equal_rewards(episode: Episode) -> float:
    await episode.client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8
    )
    return 0.25


async def never_calls_tools(episode: Episode) -> float:
    await episode.client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": "Hi"}], tools=TOOLS, max_tokens=4
    )
    return float(episode.seed % 7)


async def is_cut_off(episode: Episode) -> float:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=1)
    return float(episode.seed % 7)


async def fails_alike(episode: Episode) -> float:
    await equal_rewards(episode)
    raise ConnectionError("the judge at 10.0.0.7\nrefuses")


async def waits_for_ever(episode: Episode) -> float:
    await equal_rewards(episode)
    await anyio.sleep(60)
    return 0.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("workflow", "wanted", "also"),
    [
        (equal_rewards, "had equal rewards within each group, all of them 0.25", "agentrl replay"),
        (never_calls_tools, "replies that were offered tools calls one", "One reply: '"),
        (is_cut_off, "are cut off for their length", "rollout.max_tokens"),
        (fails_alike, "all failed with: ConnectionError: the judge at 10.0.0.7", "Mend the workflow"),
        pytest.param(
            waits_for_ever,
            "no episode and no training step has ended",
            "8 episodes, none of which is waiting for the model",
            marks=pytest.mark.soak,  # within 2 s
        ),
    ],
    ids=["rewards_equal", "no_tool_call", "replies_truncated", "same_failure", "stalled"],
)
async def test_a_run_without_steps_says_why(
    workflow: Workflow,
    wanted: str,
    also: str,
    server_url: str,
    nano_format: ChatFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarm_watch_module, "CHECK_EVERY_S", 0.2)
    said = await alarms_of(workflow, wanted, server_url, nano_format, tmp_path, alarm_stall_s=2.0)
    (line,) = [line for line in said if wanted in line and also in line]
    assert line.startswith("ALARM, step 0: ")
    assert "\n" not in line
    assert len(line) < 1500
