"""The store: what is committed survives, and consumption is one with the checkpoint."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.engine.protocol import Generation, VersionSpan
from agentrl.errors import StoreError
from agentrl.rollout.run_episode import Outcome
from agentrl.rollout.store import Store
from agentrl.trajectory import TokenRecord


def outcome(reward: float, *, interrupted: bool = False) -> Outcome:
    record = TokenRecord()
    spans = [VersionSpan(0, 0, 1), VersionSpan(1, 1, 2)] if interrupted else [VersionSpan(0, 0, 2)]
    reply = Generation(output_ids=[5, 6], logprobs=[-0.1, -0.25], versions=spans, finish="stop")
    record.add("call", None, [1, 2, 3], reply, 1.0)
    return Outcome(status="finished", reward=reward, metrics={"steps": 2.0}, record=record)


def fill(store: Store, groups: int = 3) -> None:
    store.begin_life()
    for group in range(groups):
        store.open_group(group, group)
        for sample in range(2):
            store.add(group, sample, 0, outcome(float(sample), interrupted=group == 0))
        store.close_group(group, "ready")


def test_episodes_come_back_as_they_went_in(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        episodes = store.episodes([1])
        assert [episode.reward for episode in episodes] == [0.0, 1.0]
        assert episodes[0].record.to_json() == outcome(0.0).record.to_json()
        totals = store.totals()
        assert (totals.finished, totals.failed, totals.tokens, totals.interrupted_tokens) == (6, 0, 12, 4)


def test_a_batch_is_unused_until_a_checkpoint_contains_it(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        assert [group for group, _, _ in store.unused_groups()] == [0, 1, 2]
        store.commit_checkpoint(2, tmp_path / "step-2", [(1, [0]), (2, [2])])
        assert [group for group, _, _ in store.unused_groups()] == [1]
        assert store.last_checkpoint() == (2, tmp_path / "step-2")


def test_a_rejected_group_is_never_offered_again_and_an_open_one_goes_on(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        store.close_group(0, "rejected")
        store.open_group(7, 0)
        store.add(7, 1, 0, outcome(1.0))
        assert store.unused_groups()[-1] == (7, "open", [(1, 1.0)])
        assert 0 not in [group for group, _, _ in store.unused_groups()]
        assert store.next_group_id() == 8


def test_old_checkpoints_are_handed_out_for_deletion(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        for step in (1, 2, 3):
            store.commit_checkpoint(step, tmp_path / str(step), [])
        assert store.forget_checkpoints(keep=1) == [tmp_path / "2", tmp_path / "1"]
        assert store.last_checkpoint() == (3, tmp_path / "3")


def test_kill_9_loses_no_committed_episode(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from tests.rollout.test_store import Store, fill\n"
        "fill(Store(Path(sys.argv[1])), groups=5); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "store.sqlite"
    process = subprocess.run([sys.executable, "-c", script, str(path)], cwd=Path(__file__).parents[2], timeout=60)
    assert process.returncode == -9
    with Store(path) as store:
        assert store.totals().finished == 10
        assert store.life == 1


def test_a_store_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="schema 99"):
        Store(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_text("not a database, but long enough to be read as one " * 10)
    with pytest.raises(StoreError, match="cannot be used as a store"):
        Store(path)
