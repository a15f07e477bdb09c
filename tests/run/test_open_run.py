"""Reading a run from Python: everything that is in it, while it goes on, and nothing of it changed."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest

import agentrl
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, StoreError, UsageError
from agentrl.record.end_reason import EndReason
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.run.open_run import Run, open_run
from agentrl.run.run_directory import begin_store
from agentrl.run.run_lock import lock_run
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.read_episode import sample_replies
from agentrl.store.store import Store
from tests.recorded_run import GROUP_SIZE, record_run

HELLO = "hello <b>there</b>"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two steps' worth of groups of three episodes each, whose rewards are 0, 1 and 2; then a failed one."""
    config = record_run(tmp_path / "run", steps=2)
    rows = [{"step": step, "reward_mean": step / 4, "tokens": 10 * step} for step in (1, 2)]
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "rew'
    )
    with Store(tmp_path / "run" / "store.sqlite") as store:
        store.write([OpenGroup(4, 0, 4)])
        failed = Outcome(reason=EndReason.ERROR, error=f"Traceback\nValueError: {HELLO}", metrics={"turns": 2.0})
        store.write([InsertEpisode(4, 0, 0, failed)])
    assert config.trainer.advantage.kind == "grpo"
    return agentrl.open_run(tmp_path / "run")


def files(directory: Path) -> dict[str, tuple[int, int]]:
    return {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(directory)}


def test_a_run_that_has_ended_is_read_and_nothing_in_its_directory_changes(run: Run) -> None:
    before = files(run.path)
    assert (run.status, run.step, run.summary) == ("stopped", 2, None)
    assert [row["reward_mean"] for row in run.metrics] == [0.25, 0.5]  # the torn line is none
    assert run.config == RunConfig.model_validate_json((run.path / "config.json").read_text()).model_copy(
        update={"run_dir": str(run.path)}
    )
    assert len(run.episodes()) == 13
    assert len(run.episodes()[0].trajectories) == 1
    assert run.checkpoints == []
    assert repr(run).startswith(f"<Run {run.path}  status: stopped, step: 2 of ")
    assert files(run.path) == before


def test_a_run_that_goes_on_is_read_as_it_grows_and_can_write_meanwhile(run: Run) -> None:
    lock = lock_run(run.path)
    try:
        with Store(run.path / "store.sqlite", must_exist=True) as store:
            assert run.status == "running"
            assert len(run.episodes(group=4)) == 1
            with run.open_store() as held:
                ended = Outcome(reason=EndReason.FINISHED, reward=0.5)
                store.write([InsertEpisode(4, 1, 0, ended)])  # it waits for nobody
                with pytest.raises(agentrl.DiskError):
                    held.write([CloseGroup(4)])  # who reads cannot write
            assert [episode.reward for episode in run.episodes(group=4, reason="finished")] == [0.5]
    finally:
        os.close(lock)
    assert run.status == "stopped"


def test_the_status_is_that_of_the_newest_start(run: Run) -> None:
    ends = {"summary.json": ('{"steps": 2}', "finished"), "failure.txt": ("DiskError: no room", "failed")}
    for name, (text, status) in ends.items():
        (run.path / name).write_text(text)
        assert run.status == status
        with begin_store(run.path, "tasks", run.config.model_dump_json(), resume=True):
            assert run.status == "stopped"
    (run.path / "summary.json").write_text("{")
    with pytest.raises(StoreError, match=r"summary\.json cannot be read"):
        _ = run.summary


def test_episodes_are_chosen_by_what_came_of_them(run: Run) -> None:
    def ids(**chosen: object) -> list[int]:
        return [episode.id for episode in run.episodes(**chosen)]  # type: ignore[arg-type]

    assert ids(task=1) == ids(group=1) == [4, 5, 6]
    assert ids(reason="failed") == [13]
    assert ids(min_reward=2) == [3, 6, 9, 12]
    assert ids(min_reward=0.5, max_reward=1.5, limit=2, offset=1) == [5, 8]
    assert ids(newest_first=True, limit=2) == [13, 12]
    for unknown in ("fnished", "", "Failed", 1):
        with pytest.raises(
            UsageError, match=rf"reason = {unknown!r}: no episode has it; use failed or one of finished, error"
        ):
            ids(reason=unknown)
    assert ids(task=99) == []
    assert run.episode(5).reward == 1.0
    with pytest.raises(StoreError, match=r"no episode 99; its episodes are 1 to 13"):
        run.episode(99)


def test_a_trajectory_has_each_token_with_its_text_and_the_advantage_that_the_trainer_computes(run: Run) -> None:
    episodes = run.episodes(group=0)
    for episode, advantage in zip(episodes, (-1.0, 0.0, 1.0), strict=True):  # rewards 0, 1, 2
        (path,) = episode.trajectories
        (turn,) = episode.record.turns
        assert path.token_ids == turn.prompt_ids + turn.output_ids
        assert path.pieces == [run.text.decode([token]) for token in path.token_ids]
        assert path.logprobs == [0.0] * 12 + turn.logprobs
        assert path.versions == [-1] * 12 + [0] * 12
        assert path.loss_mask == [False] * 12 + [True] * 12
        assert path.returns == [episode.reward] * 24
        assert path.advantages == pytest.approx([advantage] * 24, abs=1e-5)
        assert repr(path) == "<RunTrajectory of 24 tokens, 12 trained, turns: 1, versions: [0]>"
    assert len(episodes) == GROUP_SIZE


def test_there_is_no_advantage_where_the_group_does_not_say(run: Run) -> None:
    path = run.path / "config.json"
    path.write_text(path.read_text().replace('"grpo"', '"reinforce_pp"'))
    assert run.episodes(group=0)[0].trajectories[0].advantages is None
    assert run.episode(13).trajectories == []


def test_a_transcript_says_which_turn_follows_which_and_what_each_earned(run: Run) -> None:
    record = TokenRecord()
    reply = Generation(output_ids=[11], logprobs=[-0.5], versions=[VersionSpan(0, 0, 1)], finish="length")
    first = record.add("a", None, [10], reply, 1.0)
    second = record.add("b", first, [10, 11, 12], reply, 1.0)
    record.add("c", first, [10, 11, 13], reply, 1.0)
    record.add("d", None, [14], reply, 1.0)
    title = record.add("e", None, [15], reply, 1.0)
    title.left_out = True
    second.role, second.reward = "critic", 0.25
    with Store(run.path / "store.sqlite", must_exist=True) as store:
        number = store.write([InsertEpisode(4, 1, 0, Outcome(reason=EndReason.FINISHED, reward=1.0, record=record))])[0]
    text = {token: run.text.decode([token]) for token in range(10, 16)}
    assert run.episode(number).transcript() == (
        f"episode {number}: task 4, finished, reward 1\n"
        f"--- turn 1: prompt\n{text[10]}\n--- turn 1: reply, cut off (max_tokens or the context was used up)\n{text[11]}\n"
        f"--- turn 2 (critic): prompt\n{text[12]}\n"
        f"--- turn 2 (critic): reply, cut off (max_tokens or the context was used up), reward 0.25\n{text[11]}\n"
        f"--- turn 3, after turn 1: prompt\n{text[13]}\n--- turn 3: reply, cut off (max_tokens or the context was used up)\n{text[11]}\n"
        f"--- turn 4, a new conversation: prompt\n{text[14]}\n--- turn 4: reply, cut off (max_tokens or the context was used up)\n{text[11]}\n"
        f"--- turn 5, a new conversation (not trained on): prompt\n{text[15]}\n"
        f"--- turn 5: reply, cut off (max_tokens or the context was used up)\n{text[11]}"
    )


def test_a_failed_episode_has_its_error_in_its_transcript(run: Run) -> None:
    assert run.episode(13).transcript().endswith(f"ValueError: {HELLO}")


def test_the_best_and_the_worst_reply_are_shown_in_bounded_escaped_lines(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SimpleNamespace(decode=lambda _: "\x1b[31mso\nlong " + "x" * 10_000)
    monkeypatch.setitem(vars(run), "text", text)
    best, worst = sample_replies(run.episodes())
    assert best.partition(", ")[2].startswith("reward 2): '\N{REPLACEMENT CHARACTER}[31mso long xxx")
    assert worst.startswith("the worst reply (episode ")
    assert len(best) < 500
    alike = [*run.episodes(group=0, limit=1), *run.episodes(group=0, limit=1)]
    assert [line.partition(" reply")[0] for line in sample_replies(alike)] == ["a"]
    assert list(sample_replies(run.episodes(reason="failed"))) == []


def test_without_a_tokenizer_figures_are_read_and_text_is_not(run: Run) -> None:
    path = run.path / "config.json"
    config = json.loads(path.read_text())
    config["model"]["path"] = str(run.path / "gone")
    path.write_text(json.dumps(config))
    episode = run.episode(1)
    assert (episode.reward, len(episode.record.turns)) == (0.0, 1)
    with pytest.raises(ConfigError, match=r"there is no tokenizer in .*gone, so tokens have no text"):
        episode.transcript()


def test_metrics_become_a_data_frame(run: Run) -> None:
    assert list(pandas.DataFrame(run.metrics)["tokens"]) == [10, 20]


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run; name the directory"):
        open_run(tmp_path)
    with pytest.raises(StoreError, match="holds no run"):
        open_run(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text("{}")
    warm_start = open_run(tmp_path)
    with pytest.raises(StoreError, match=r"holds no store\.sqlite, so it has no episodes"):
        warm_start.episodes()


def test_an_episode_that_is_damaged_is_named(run: Run) -> None:
    whole, damaged = run.episode(1), run.episode(2)
    with sqlite3.connect(run.path / "store.sqlite") as db:
        db.execute("UPDATE calls SET output_ids = x'00' WHERE episode = 2")
    assert whole.record.turns
    with pytest.raises(StoreError, match=r"episode 2 cannot be read from .*store.sqlite: .*; agentrl audit"):
        _ = damaged.record
