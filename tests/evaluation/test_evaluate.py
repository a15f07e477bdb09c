"""The figures of an evaluation in closed form, and its log."""

from __future__ import annotations

import itertools
import statistics
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.config import EngineConfig, RunConfig
from agentrl.engine.launch import launch_engine
from agentrl.episode import Episode
from agentrl.errors import ConfigError, StoreError, UsageError
from agentrl.evaluation.directory import KeptEpisodes, keep_episodes, new_directory
from agentrl.evaluation.figures import interval, pass_at_k, summarise
from agentrl.evaluation.progress import EvaluationView
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, open_proxy
from agentrl.record.end_reason import EndReason
from agentrl.rollout.workflow import Workflow
from agentrl.run.audit import audit
from agentrl.run.replay import replay
from agentrl.run.train import train
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from tests.tracking.keeping_tracker import KeepingTracker


def ended(reward: float, reason: EndReason = EndReason.FINISHED, **metrics: float) -> Outcome:
    error = "boom" if reason == EndReason.ERROR else None
    return Outcome(reason=reason, reward=reward, metrics=metrics, error=error, duration_s=2.0)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    outcomes = [True] * passed + [False] * (n - passed)
    draws = [any(draw) for draw in itertools.combinations(outcomes, k)]
    assert pass_at_k(n, passed, k) == pytest.approx(statistics.fmean(draws))


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (30, 2.0423), (1000, 1.9623)]
)
def test_the_interval_of_a_mean_is_students(freedom: int, t: float) -> None:
    """The quantiles are those of scipy.stats.t.ppf(0.975, freedom)."""
    values = [float(n % 3) for n in range(freedom + 1)]
    found, error = interval(values), statistics.stdev(values) / len(values) ** 0.5
    assert found.high - found.mean == pytest.approx(t * error, rel=2e-3)
    assert found.low + found.high == pytest.approx(2 * statistics.fmean(values))


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (5, 10, 0.2366, 0.7634),
        (27, 30, 0.7438, 0.9654),
    ],
)
def test_the_interval_of_a_share_is_wilsons(passed: int, n: int, low: float, high: float) -> None:
    """As statsmodels.stats.proportion.proportion_confint(passed, n, method="wilson") has it."""
    found = interval([1.0] * passed + [0.0] * (n - passed), shares=True)
    assert (found.mean, found.low, found.high) == pytest.approx((passed / n, low, high), abs=1e-4)


def test_the_share_of_tasks_that_pass_at_times_ends_at_0_and_1() -> None:
    found = interval([0.25, 0.75, 0.75, 1.0], shares=True)
    assert (found.low, found.high) == (pytest.approx(0.6875 - 3.1824 * 0.1573, abs=1e-3), 1.0)
    assert interval([0.5, 0.5], shares=True).low < 0.5, "an interval without a width would be no interval"


def test_tasks_are_the_independent_draws() -> None:
    by_task = [[ended(1.0), ended(1.0)], [ended(0.0, turns=3.0), ended(0.0, EndReason.ERROR)]]
    result = summarise(by_task, ["a", "b"], pass_reward=1.0)
    assert (result.mean_reward, result.tasks, result.episode_count, result.failed) == (0.5, 2, 4, 1)
    assert (
        result.mean_reward_95
        == (result.pass_at[1].low, result.pass_at[1].high)
        == pytest.approx((0.0945, 0.9055), abs=1e-4)
    )
    assert {k: chance.mean for k, chance in result.pass_at.items()} == {1: 0.5, 2: 0.5}
    assert [(row.name, row.passed, row.failed) for row in result.per_task] == [("a", 2, 0), ("b", 0, 1)]
    assert result.metrics == {"turns": 3.0}
    assert result.first_error == "boom"


def test_of_a_single_task_the_episodes_are() -> None:
    result = summarise([[ended(float(s < 5)) for s in range(10)]], [""], pass_reward=1.0)
    assert sorted(result.pass_at) == [1, 2, 4, 8, 10]
    assert result.mean_reward_95[0] == pytest.approx(0.2366, abs=1e-4)
    assert result.to_table()["mean reward [95 %]"] == "0.500 [0.237, 0.763]  n = 10 episodes of one task"


def kept_in(path: Path, seed: int = 1) -> AbstractContextManager[KeptEpisodes]:
    return keep_episodes(path, {"seed": seed}, RunConfig.model_validate({"model": "nano"}))


def test_finished_episodes_are_kept_and_failed_ones_run_again(tmp_path: Path) -> None:
    path = tmp_path / "evaluation"
    with kept_in(path) as kept:
        added = kept.add(0, 0, 7, Outcome(reason=EndReason.FINISHED, reward=1.0, metrics={"turns": 2.0}))
        failed = kept.add(0, 1, 8, Outcome(reason=EndReason.ERROR, error="boom"))
        assert (added.reward, added.metrics, failed.reason) == (1.0, {"turns": 2.0}, "error")
        assert failed.transcript().endswith("--- error\nboom")
    with kept_in(path) as kept:
        assert kept.finished() == [added]
        again = kept.add(0, 1, 8, Outcome(reason=EndReason.FINISHED, reward=0.5))
    with kept_in(path) as kept:
        assert kept.finished() == [added, again]
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with kept_in(tmp_path / "evaluation"):
        pass
    with (
        pytest.raises(ConfigError, match="holds something else than this evaluation: seed 1 is not 2; name another"),
        kept_in(tmp_path / "evaluation", seed=2),
    ):
        pass
    (tmp_path / "run").mkdir()
    with Store(tmp_path / "run" / "store.sqlite") as store:
        store.begin_restart("4 tasks 5d0c, in groups of 8")
    with pytest.raises(ConfigError, match="holds something else than this evaluation; name"), kept_in(tmp_path / "run"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; name another directory"), kept_in(tmp_path / "file"):
        pass


def test_two_evaluations_never_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evaluation"
    with kept_in(path):
        assert agentrl.open_run(path).status == "running"
        for seed in (1, 2):
            with pytest.raises(ConfigError, match="another evaluation goes on in `out`"), kept_in(path, seed):
                pass
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as at_once:
        made = [future.result() for future in [at_once.submit(new_directory, "evaluation") for _ in range(16)]]
    assert len(set(made)) == 16
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in made)
    (tmp_path / "runs").touch()
    with pytest.raises(ConfigError, match=r"cannot be written: .*; name another directory"):
        new_directory("service")


def test_an_evaluation_that_was_refused_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "evaluation"
    with kept_in(path):
        pass
    with pytest.raises(ConfigError, match="holds something else"), kept_in(path, seed=2):
        pass
    with kept_in(path):
        pass


@pytest.mark.anyio
async def test_what_is_of_runs_alone_says_that_the_directory_is_of_an_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "evaluation"

    def evaluated() -> int:
        with kept_in(path) as kept:
            return kept.add(0, 0, 7, Outcome(reason=EndReason.FINISHED, reward=1.0)).id

    added = await in_thread(evaluated)
    with pytest.raises(StoreError, match="is of an evaluation"):
        await replay(path, added)
    with pytest.raises(StoreError, match="is of an evaluation"):
        await in_thread(audit, path)
    for resume in (False, True):
        with pytest.raises(StoreError, match=r"is of an evaluation.*and a run needs another `run_dir`"):
            await train(RunConfig(run_dir=str(path)), workflow=always, tasks=[{}], resume=resume)
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "lock", "store.sqlite"]


async def always(episode: Episode) -> float:
    """One short call; every second task is worth 1."""
    messages: list[Any] = [{"role": "user", "content": str(episode.task["n"])}]
    await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=2)
    episode.log(n=episode.task["n"])
    return float(episode.task["n"] % 2)


def settings(server_url: str, **values: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"model": "nano", "engine": {"urls": [server_url]}, "eval": {"samples": 2}, **values}
    )


@pytest.mark.anyio
async def test_functions_and_lists_are_evaluated_in_the_loop_that_runs(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeepingTracker, "made", [])
    tasks = [{"n": n, "about": f"number {n}"} for n in range(4)]
    tracked = settings(server_url, tracking={"trackers": ["tests.tracking.keeping_tracker:KeepingTracker"]})
    with anyio.fail_after(60):
        result = await agentrl.evaluate(tracked, workflow=always, tasks=tasks, out=tmp_path / "kept")
    (tracker,) = KeepingTracker.made
    (_, step, figures), (_, _, samples), _ = tracker.given
    assert step == 0
    assert (figures["eval_mean_reward"], figures["eval_pass_at_2"], figures["eval_n"]) == (0.5, 0.5, 1.5)
    assert [sample.reward for sample in samples[:2]] == [1.0, 0.0]
    assert (result.mean_reward, result.pass_at[2].mean, result.tasks, result.failed) == (0.5, 0.5, 4, 0)
    firsts = [(e.task, e.episode_index, e.reward) for e in result.episodes[:4]]
    assert firsts == [(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)]
    assert result.metrics == {"n": 1.5}
    assert [row.name for row in result.per_task] == ["number 0", "number 1", "number 2", "number 3"]
    assert repr(result).startswith("Evaluation(mean reward [95 %]: 0.500 [")
    lines = capsys.readouterr().err.splitlines()
    assert "8 of 8 episodes" in lines
    alarms = [line for line in lines if line.startswith("ALARM")]
    assert [line[:24] for line in alarms] == ["ALARM, 8 of 8 episodes: "]
    assert "of the last 8 replies are cut off for their length" in alarms[0]
    assert [line[:25] for line in lines[-3:-1]] == ["the best reply (episode 8", "the worst reply (episode "]
    assert lines[-1].startswith("of the last 8 replies: cut off ")
    read = await in_thread(agentrl.open_run, tmp_path / "kept")
    assert await in_thread(lambda: (read.status, (read.summary or {})["mean_reward"])) == ("finished", 0.5)

    view = EvaluationView()  # nothing is left to run of another evaluation of the same
    with anyio.fail_after(60):
        again = await agentrl.evaluate(
            settings(server_url), workflow=always, tasks=lambda: tasks, out=tmp_path / "kept", view=view
        )
    assert again.to_json() == result.to_json()
    assert (view.total, view.ended) == (8, 8)
    assert capsys.readouterr().err == ""


async def rambles(episode: Episode) -> float:
    """A single turn whose model cannot end it; the first task's has no bound of its own."""
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    bound: Any = {"max_tokens": 2} if episode.task["n"] else {}
    bias = {str(token): -100 for token in episode.task["stop"]}
    reply = await episode.client.chat.completions.create(
        model=episode.model, messages=messages, logit_bias=bias, **bound
    )
    assert reply.usage
    assert reply.usage.completion_tokens == bound.get("max_tokens", 256), "a quarter of the context of nano"
    return 0.0


async def fails(episode: Episode) -> float:
    raise KeyError(episode.seed)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("workflow", "wanted"),
    [
        (rambles, "100% of the last 32 replies are cut off for their length, and they have 18 tokens on average"),
        (fails, f"(at {__file__}:{fails.__code__.co_firstlineno + 1} in fails)"),
    ],
    ids=["replies without an end", "failures that each say another number"],
)
async def test_an_evaluation_in_which_everything_goes_wrong_says_so_before_its_end(
    workflow: Workflow, wanted: str, server_url: str, tmp_path: Path, nano_format: ChatFormat
) -> None:
    lines = list[str]()
    view = EvaluationView(lines.append)
    tasks = [{"n": n, "stop": nano_format.stop_token_ids} for n in range(16)]
    with anyio.fail_after(60):
        await agentrl.evaluate(settings(server_url), workflow=workflow, tasks=tasks, out=tmp_path / "kept", view=view)
    assert [line for line in lines if line.startswith("ALARM") and wanted in line]


@pytest.mark.anyio
async def test_samples_that_are_added_to_an_evaluation_are_new_ones(tmp_path: Path) -> None:
    said = []

    async def listens(episode: Episode) -> float:
        messages: Any = [{"role": "user", "content": "What is 4 + 5?"}]
        reply = await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=32)
        said.append(reply.choices[0].message.content)
        return 0.0

    with anyio.fail_after(120):
        for samples in (1, 2):
            config = RunConfig.model_validate({"model": "nano", "eval": {"samples": samples}})
            await agentrl.evaluate(config, workflow=listens, tasks=[{}], out=tmp_path / "kept", view=EvaluationView())
    assert len(said) == len(set(said)) == 2


@pytest.mark.anyio
async def test_what_was_said_can_be_read_afterwards(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails_late(episode: Episode) -> float:
        await always(episode)
        if episode.task["n"] == 1:
            raise RuntimeError("the tool broke")
        return 0.5

    monkeypatch.chdir(tmp_path)
    with anyio.fail_after(60):
        result = await agentrl.evaluate(
            settings(server_url), workflow=fails_late, tasks=[{"n": 0}, {"n": 1}], view=EvaluationView()
        )
    await in_thread(check_transcripts, result, tmp_path)


def check_transcripts(result: agentrl.Evaluation, folder: Path) -> None:
    assert result.directory is not None
    assert result.directory.parent == folder / "evaluations"
    read = agentrl.open_run(result.directory).episodes()
    assert len(read) == 4
    for one in result.episodes:
        (again,) = [own for own in read if (own.task, own.episode_index) == (one.task, one.episode_index)]
        assert one.transcript() == again.transcript()
        assert f"<|im_start|>user\n{one.task}<|im_end|>" in one.transcript()
        assert ("the tool broke" in one.transcript()) == (one.task == 1)
        assert "--- turn 1: reply" in one.transcript()
        (trajectory,) = one.trajectories
        assert sum(trajectory.loss_mask) == again.tokens > 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("values", "given", "evaluated"),
    [
        ({"eval": {"tasks": "held.jsonl"}}, None, (3, ["the tasks are 3 of held.jsonl"])),
        ({"data": {"eval_share": 0.5}}, None, (2, ["the tasks are the 2 held-out ones"])),
        (
            {"data": {"eval_share": 0.5}, "eval": {"limit": 1}},
            None,
            (1, ["the tasks are the first 1 of 2 held-out ones"]),
        ),
        ({"eval": {"tasks": "held.jsonl"}, "data": {"eval_share": 0.5}}, [{"n": 1}], (1, [])),
    ],
)
async def test_tasks_that_are_held_out_from_training_are_those_that_are_evaluated(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Any, given: Any, evaluated: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in (("tasks", 4), ("held", 3)):
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n' * count)
    config, lines = settings(server_url, tasks="tasks.jsonl", **values), list[str]()
    with anyio.fail_after(60):
        result = await agentrl.evaluate(config, workflow=always, tasks=given, view=EvaluationView(lines.append))
    assert (result.tasks, [line for line in lines if line.startswith("the tasks are ")]) == evaluated


@pytest.mark.anyio
async def test_the_tasks_may_be_a_file_and_the_model_elsewhere(
    server_url: str, tmp_path: Path, nano_format: ChatFormat
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"n": 1}\n')
    elsewhere = EngineConfig(urls=[server_url])
    async with (
        launch_engine(str(NANO), elsewhere, log=tmp_path / "engine.log", seed=0) as engine,
        open_proxy(engine, nano_format, "its-name") as proxy,
    ):
        evaluate = partial(
            agentrl.evaluate,
            settings(server_url, model="its-name"),
            workflow=always,
            tasks=tmp_path / "tasks.jsonl",
            base_url=proxy.base_url,
            view=EvaluationView(),
            out=tmp_path / "kept",
        )
        with anyio.fail_after(60):
            with pytest.raises(
                ConfigError, match=r"refuses the key \(401\); give its own by `api_key` or \$OPENAI_API_KEY"
            ):
                await evaluate(api_key="another")
            result = await evaluate(api_key=proxy.open_session().key)
    assert await evaluate() == result, "what is finished is shown again without the endpoint"
    assert (result.mean_reward, len(result.episodes), result.failed) == (1.0, 2, 0)
    assert "no model call is recorded" in await in_thread(result.episodes[0].transcript)


def blocking(episode: Episode) -> float:
    return 0.0


async def of_two(episode: Episode, more: int) -> float:
    return 0.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "values", "message"),
    [
        ({"workflow": blocking}, {}, "the workflow is not async; write `async def run"),
        ({"workflow": of_two}, {}, "takes .*more.*, so it cannot be called with an episode alone"),
        ({"workflow": 3}, {}, "the workflow is not async"),
        ({"workflow": None}, {}, "`workflow` is not set"),
        ({"tasks": None}, {}, "`tasks` is not set"),
        ({"tasks": iter([{"n": 1}])}, {}, "is an iterator, which can be read only once"),
        ({"tasks": [1]}, {}, "tasks, task 0: a task must be a JSON object, not int"),
        ({}, {"model": ""}, r"`model\.path` is not set"),
        ({}, {"model": "/no/model"}, "'/no/model' is not a directory"),
        ({}, {"rollout": {"workers": 2}}, "which load it from a file: name the file"),
    ],
)
async def test_what_cannot_be_evaluated_is_refused_before_work_starts(
    given: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    config = settings("http://127.0.0.1:9", **values)
    with anyio.fail_after(30), pytest.raises(UsageError, match=message):
        await agentrl.evaluate(config, **{"workflow": always, "tasks": [{"n": 1}], **given})
