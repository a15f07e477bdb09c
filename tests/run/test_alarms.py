"""A line warns when a run is not healthy, says why and what to do; a run that learns nothing is never silent."""

from __future__ import annotations

import math
import re
from collections import Counter, deque
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
from agentrl.rollout import alarms as alarms_module
from agentrl.rollout.alarms import ALARMS, AlarmWatch, Health, Seen, alarms
from agentrl.rollout.controller import Batch, Controller
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.workflow import Workflow
from agentrl.run.training_loop import _step, waiting_for
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.tasks.curriculum import TaskList
from tests.components import wait_until
from tests.rollout.test_controller import TASKS, runner_of

HEALTHY: dict[str, int] = {
    "replies": 256,
    "truncated": 128,
    "sampled_tokens": 256 * 4096,
    "with_tools": 256,
    "tool_calls": 1,
    "prompt_tokens": 1000,
}
"""Sums over the recent attempts."""


def alarms_of_health(health: Health, **settings: Any) -> dict[str, str]:
    config = RunConfig.model_validate({"run_dir": "runs/x", **settings})
    return alarms(Seen(health, config, lambda _: "I'd say 4", lambda: "the moon"), training=True)


def healthy(counts: dict[str, int] | None = None, **values: Any) -> Health:
    """A run that is well but for what is given: sums over its attempts, and fields of `Health`."""
    step = {"logprob_mismatch_mean_abs": 1e-4}
    recent = deque([Counter({**HEALTHY, **(counts or {})})] + 15 * [Counter[str]()])
    ended_now = math.inf  # however much later the alarms are asked for
    return Health(
        **{"recent": recent, "step": step, "uniform_groups": 15, "failures": 7, "last_end": ended_now, **values}
    )


def test_there_are_at_most_eight_and_the_page_of_metrics_has_each_with_what_to_do() -> None:
    table = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text().partition("## Alarms")[2]
    assert set(re.findall(r"^\| `alarm_(\w+)` \|", table, re.M)) == set(ALARMS)
    assert len(ALARMS) <= 8


def test_a_healthy_run_says_nothing() -> None:
    assert alarms_of_health(healthy()) == alarms_of_health(Health()) == {}


@pytest.mark.parametrize(
    ("name", "health", "parts"),
    [
        (
            "altered_sampling",
            healthy({"altered": 64}, altered_by=["logit_bias", "top_k"]),
            ["25% of the last 256 replies are not trained on", "logit_bias; top_k", "trainer.turns.altered_sampling"],
        ),
        (
            "rewards_equal",
            healthy(uniform_groups=16, uniform_rewards={0.0}),
            ["the last 16 groups", "all of them 0:", "replay"],
        ),
        (
            "rewards_equal",
            healthy(uniform_groups=16, uniform_rewards={1.0}, highest_reward=1.0, episode=7),
            ["all of them 1:", "if the tasks are solved, end the run here", "agentrl replay runs/x 7"],
        ),
        ("rewards_equal", healthy(uniform_groups=40), ["the last 40 groups had equal rewards within each group: "]),
        (
            "no_tool_call",
            healthy({"tool_calls": 0}, complete=True),
            ["none of the last 256", "model.renderer", "I'd say 4"],
        ),
        (
            "history_rewritten",
            healthy({"conversations": 230, "rerendered_tokens": 600}),
            ["90% of the model calls of the last 16 episodes", "60% of their prompt tokens", "docs/api.md"],
        ),
        ("replies_truncated", healthy({"truncated": 129}), ["50% of the last 256 replies", "rollout.max_tokens"]),
        (
            "attempts_failed",
            healthy(failures=8, first_failure="KeyError: 1 (at w.py:3 in run)"),
            ["the last 8 attempts", "KeyError: 1 (at w.py:3 in run)"],
        ),
        ("stalled", healthy(last_end=-1e9), ["min; what is waited for: the moon"]),
        ("mismatch", healthy(step={"logprob_mismatch_mean_abs": 0.05}), ["differ by 0.05 in mean |Δlogprob|"]),
    ],
)
def test_each_fault_has_its_line(name: str, health: Health, parts: list[str]) -> None:
    ((alarm, line),) = alarms_of_health(health).items()
    assert alarm == name
    assert "\n" not in line
    assert not re.search(r"[.?!][.?!]|[a-z] Look", line)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("episodes", "counts"),
    [(15, {}), (16, {"conversations": 40}), (16, {"rerendered_tokens": 20}), (40, {"conversations": 80})],
    ids=["too few", "conversations go on", "little is sent again", "two questions each"],
)
def test_a_client_that_lets_conversations_go_on_raises_no_alarm(episodes: int, counts: dict[str, int]) -> None:
    rewritten = {"replies": 80, "conversations": 72, "prompt_tokens": 100, "rerendered_tokens": 60}
    recent = deque([Counter({**rewritten, **counts})] + (episodes - 1) * [Counter[str]()])
    assert alarms_of_health(Health(recent=recent)) == {}


def test_a_run_with_a_teacher_or_single_episodes_needs_no_rewards() -> None:
    single = {"rollout": {"batch_size": 8, "group_size": 1}, "trainer": {"advantage": "rloo"}}
    taught = {"trainer": {"teacher": {"url": "http://127.0.0.1:1"}}}
    for settings in (single, taught):
        assert alarms_of_health(Health(uniform_groups=100), **settings) == {}


def test_an_alarm_is_said_when_it_begins_rarely_while_it_lasts_and_counted() -> None:
    said: list[str] = []
    holding = {"attempts_failed": "no"}
    watch = AlarmWatch(lambda: dict(holding), said.append, lambda: "now")
    for now in range(0, 1300, 10):
        watch.check(now)
    assert said == ["ALARM, now: no"] * 3
    assert watch.take_metrics() == {"alarm_attempts_failed": 1, "alarms": {"attempts_failed": "no"}}
    assert watch.take_metrics() == {"alarm_attempts_failed": 1}
    for _ in range(5):  # it comes and goes
        holding.clear()
        watch.check(1300)
        holding["attempts_failed"] = "no"
        watch.check(1310)
    assert len(said) == 3
    assert watch.begun["attempts_failed"] == 1 + 5


def test_failures_are_counted_in_a_row_whatever_they_say_and_the_first_is_shown() -> None:
    health, counts = Health(), []
    for status, text in [("error", "f0"), ("finished", ""), ("error", "f1"), ("timeout", "f2"), ("hung", "f3")]:
        health.attempt_ended(Outcome(reason=status, error=text or None), 1)  # type: ignore[arg-type]
        counts.append(health.failures)
    assert counts == [1, 0, 1, 2, 3]
    assert health.first_failure == "f1"


def test_foreign_text_becomes_one_bounded_line() -> None:
    class UnshowableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert one_line("a\n b\x1b[31m\ud800") == "a b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert len(one_line("x" * 10**7)) == 400
    assert one_line(UnshowableError()) == "a UnshowableError that cannot be shown"
    assert error_line("Traceback (most recent call last):\n  x\nValueError: one\ntwo\n") == "ValueError: one"


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
            gate = StalenessGate(groups_per_batch=2, max_staleness=20, window=1)
            controller = Controller(TaskList([TASKS]), config.rollout, 0, runner, store, gate)
            engine: Any = runner.proxy.engine
            health = controller.health
            seen = Seen(health, config, chat_format.decode, lambda: waiting_for(controller, engine))
            watch = AlarmWatch(lambda: alarms(seen, training=True), said.append, lambda: "step 0")
            async with watch.open(), anyio.create_task_group() as group:
                group.start_soon(controller.run)
                await wait_until(lambda: any(wanted in line for line in said), 60)
                group.cancel_scope.cancel()
    return said


@pytest.mark.anyio
async def test_a_stalled_run_names_what_its_main_loop_waits_for() -> None:
    """Looked at from within the trainer's step, and then from within the update of the weights, which fails."""
    health = Health()
    looks: list[str] = []

    def look() -> None:
        looks.append(waiting_for(parts.controller, parts.engine))

    async def trains(*_: object) -> Any:
        look()
        return {"skipped_optimizer_steps": 0}

    async def loads(*_: object) -> Any:
        look()
        raise EngineError("went silent")

    parts: Any = SimpleNamespace(
        controller=SimpleNamespace(health=health, progress=SimpleNamespace(running=0)),
        trainer=SimpleNamespace(step=trains, weights=SimpleNamespace(path="v1", version=1)),
        update_weights=loads,
        engine=SimpleNamespace(in_flight=0, serving=["one"]),
    )
    look()
    with pytest.raises(EngineError):
        await _step(parts, Batch([1], [0.0]), 0.0)
    look()
    assert looks == [
        "groups to start",
        "the trainer's step (trainer.log), for 0 s now",
        "the inference servers to load the new weights (engine.log), for 0 s now",
        "groups to start",
    ]


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
    raise ConnectionError(f"request {episode.seed} to the judge at 10.0.0.7\nis refused")


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
        (
            fails_alike,
            "the judge at 10.0.0.7 (at ",
            f"{__file__}:{fails_alike.__code__.co_firstlineno + 2} in fails_alike)",
        ),
        pytest.param(
            waits_for_ever,
            "nothing has ended for",
            "8 episodes, none of which is waiting for the model",
            marks=pytest.mark.soak,  # within 2 s
        ),
    ],
    ids=["rewards_equal", "no_tool_call", "replies_truncated", "attempts_failed", "stalled"],
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
    monkeypatch.setattr(alarms_module, "CHECK_EVERY_S", 0.2)
    monkeypatch.setattr(alarms_module, "STALL_S", 2.0)
    said = await alarms_of(workflow, wanted, server_url, nano_format, tmp_path)
    (line,) = [line for line in said if wanted in line and also in line]
    assert line.startswith("ALARM, step 0: ")
    assert "\n" not in line
    assert len(line) < 1500
