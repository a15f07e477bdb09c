"""Trackers get what a run has, exactly and in order; one that raises or hangs harms nothing; a resumed run goes on with its curve."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.run.open_run import Run
from agentrl.tracking import tracker as tracker_module
from agentrl.tracking.tracker import load_trackers, open_tracking
from tests.recorded_run import record_run
from tests.tracking.keeping_tracker import KeepingTracker

pytestmark = pytest.mark.anyio


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The configuration of a run with two groups of three episodes, which are worth 0, 1 and 2."""
    monkeypatch.setattr(KeepingTracker, "made", [])
    return record_run(tmp_path / "run", steps=1)


def opened(config: RunConfig, said: list[str], step: int = 0, **trackers: Any) -> Any:
    return open_tracking(trackers, config, Path(config.run_dir), step, said.append)


async def test_a_tracker_gets_configuration_metrics_alarms_and_samples_in_order(recorded: RunConfig) -> None:
    trackers = load_trackers(["tests.tracking.keeping_tracker:KeepingTracker"])
    said: list[str] = []
    run = Run(Path(recorded.run_dir))
    async with open_tracking(trackers, recorded, run.path, 0, said.append) as tracking:
        tracking.log(1, {"step": 1, "reward_mean": None, "wait_s": 0.1, "reasons": {"finished": 3}})
        tracking.show(1, partial(run.episodes, reason="finished"))
        tracking.alarm("ALARM, step 1: nothing is learned")
    (made,) = KeepingTracker.made
    assert (made.run.name, made.run.step, made.run.directory) == ("run", 0, run.path)
    written = json.loads(await in_thread((run.path / "config.json").read_text))
    assert made.run.config == written
    (log, (_, _, samples), alarm, close) = made.given
    assert log == ("log", 1, {"step": 1, "wait_s": 0.1})
    assert [(one.step, one.reward) for one in samples[:2]] == [(1, 2.0), (1, 0.0)], "the best and the worst"
    assert len(samples) == 3
    transcripts = await in_thread(lambda: {one.transcript() for one in run.episodes()})
    assert {one.transcript for one in samples} <= transcripts
    assert alarm == ("alarm", 1, "ALARM, step 1: nothing is learned")
    assert close == ("close",)
    assert said == ["ALARM, step 1: nothing is learned"]


async def test_a_tracker_that_raises_misses_that_and_is_named_once(recorded: RunConfig) -> None:
    class Raising(KeepingTracker):
        def __init__(self, run: Any) -> None:
            super().__init__(run)
            if len(self.made) == 1:
                raise ConnectionError("its server is not there yet")

        def log(self, step: int, metrics: Any) -> None:
            if step == 2:
                raise SystemExit(3)
            super().log(step, metrics)

    said: list[str] = []
    async with opened(recorded, said, bad=Raising) as tracking:
        for step in range(1, 5):
            tracking.log(step, {"step": step})
    (line,) = said
    assert line.startswith("tracker bad: it raised ConnectionError: its server is not there yet")
    assert [entry[1] for entry in KeepingTracker.made[1].given[:-1]] == [1, 3, 4]


async def test_a_tracker_that_hangs_delays_neither_the_run_nor_another_tracker(
    recorded: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    class Hanging(KeepingTracker):
        def log(self, step: int, metrics: Any) -> None:
            goes_on.wait()

    monkeypatch.setattr(tracker_module, "QUEUED", 8)
    said: list[str] = []
    async with opened(recorded, said, hangs=Hanging) as tracking:
        for step in range(1, 20):
            tracking.log(step, {"step": step})
        async with opened(recorded, said, good=KeepingTracker) as other:
            other.log(1, {"step": 1})
        assert KeepingTracker.made[-1].given == [("log", 1, {"step": 1}), ("close",)]
        goes_on.set()
    assert [line.partition(".")[0] for line in said] == [
        "tracker hangs: it is 8 entries behind, so later ones are dropped"
    ]


async def test_trackers_write_out_side_by_side_at_the_end(recorded: RunConfig) -> None:
    second_ended = threading.Event()

    class First(KeepingTracker):
        def close(self) -> None:
            second_ended.wait()
            super().close()

    class Second(KeepingTracker):
        def close(self) -> None:
            second_ended.set()

    async with opened(recorded, [], first=First, second=Second):
        pass
    (first,) = (made for made in KeepingTracker.made if isinstance(made, First))
    assert first.given == [("close",)]


async def test_a_tracker_that_does_not_end_is_left_behind(recorded: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    class Hanging(KeepingTracker):
        def close(self) -> None:
            goes_on.wait()

    monkeypatch.setattr(tracker_module, "FLUSH_TIMEOUT_S", 0.1)
    said: list[str] = []
    async with opened(recorded, said, hangs=Hanging):
        pass
    goes_on.set()
    assert [line.partition(" of the end")[0] for line in said] == [
        "tracker hangs: it did not write everything out within 0.1 s"
    ]


async def test_a_resumed_run_is_the_same_to_a_tracker_and_another_run_is_not(
    recorded: RunConfig, tmp_path: Path
) -> None:
    copied = await in_thread(shutil.copytree, recorded.run_dir, tmp_path / "mine")
    renamed = recorded.model_copy(update={"run_dir": str(copied)})
    for config, step in ((recorded, 0), (recorded, 3), (renamed, 3)):
        async with opened(config, [], step, own=KeepingTracker):
            pass
    first, again, other = (made.run for made in KeepingTracker.made)
    assert (again.id, again.step) == (first.id, 3)
    assert other.id != first.id
    assert other.name == "mine"


async def test_tensorboard_reads_a_curve_in_which_undone_steps_were_overwritten(recorded: RunConfig) -> None:
    make, run_dir, said = load_trackers(["tensorboard"]), Path(recorded.run_dir), list[str]()
    async with open_tracking(make, recorded, run_dir, 0, said.append) as tracking:
        tracking.log(0, {"eval_mean_reward": 0.25})
        for step in range(1, 6):
            tracking.log(step, {"step": step, "reward_mean": step / 8})
    async with open_tracking(make, recorded, run_dir, 3, said.append) as tracking:
        for step in range(4, 7):
            tracking.log(step, {"step": step, "reward_mean": 1 + step / 8})
        tracking.show(6, Run(run_dir).episodes)
        tracking.alarm("ALARM, step 6: <b>stalled</b>")
    assert said == ["ALARM, step 6: <b>stalled</b>"]
    read = EventAccumulator(str(run_dir / "tensorboard"))
    await in_thread(read.Reload)
    curve = [(event.step, event.value) for event in read.Scalars("reward_mean")]
    assert curve == [(1, 1 / 8), (2, 2 / 8), (3, 3 / 8), (4, 1.5), (5, 1.625), (6, 1.75)]
    assert [(event.step, event.value) for event in read.Scalars("eval_mean_reward")] == [(0, 0.25)]

    def texts(tag: str) -> list[tuple[int, str]]:
        found = ((event.step, event.tensor_proto.string_val[0].decode()) for event in read.Tensors(tag))
        return [(step, "\n".join(line[4:] for line in text.splitlines())) for step, text in found]

    assert texts("alarm") == [(6, "ALARM, step 6: <b>stalled</b>")]
    (sample,) = texts("samples/0")
    assert sample[0] == 6
    assert "reward 2" in sample[1]
    assert "--- turn 1: reply" in sample[1]
    assert json.loads(texts("config")[-1][1])["model"] == json.loads(recorded.model_dump_json())["model"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weights-and-biases", "use tensorboard, wandb, mlflow, trackio, or FILE_OR_MODULE:NAME"),
        ("no_such_module:Tracker", "No module named 'no_such_module'"),
        ("agentrl.tracking.tracker:Nothing", "has no attribute 'Nothing'"),
    ],
)
def test_a_tracker_that_is_not_there_is_refused_before_the_run(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_trackers([name])


def test_a_tracker_whose_package_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"`tracking.trackers` = wandb needs wandb: pip install .*\[wandb\]"):
        load_trackers(["wandb"])
