"""`agentrl view`, `runs` and `episodes` as a user types them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from agentrl import open_run
from agentrl.cli.main import main
from agentrl.cli.run_tools import shown_on_page
from agentrl.config import load_config
from agentrl.evaluation.directory import hold_store
from agentrl.record.end_reason import EndReason
from agentrl.run.session_store import SessionStore
from agentrl.store.changes import InsertEvaluation
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from tests.recorded_run import record_run


def test_view_prints_an_address_serves_the_runs_there_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    for name in ("one", "two"):
        record_run(tmp_path / name, steps=1)
    command = [sys.executable, "-m", "agentrl", "view", "--act", str(tmp_path / "one"), str(tmp_path / "two")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            assert address is not None
            runs = httpx.get(f"{address[0]}api/runs").json()["runs"]
        finally:
            process.send_signal(signal.SIGINT)
    assert [(run["name"], run["acts"]) for run in runs] == [("one", True), ("two", True)]
    assert process.wait(timeout=30) == 0


def test_view_says_where_there_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no run" in capsys.readouterr().err


def test_view_says_where_it_cannot_listen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path / "run", steps=1)
    assert main(["view", str(tmp_path / "run"), "--port", "99999"]) == 2
    assert "--port 99999: cannot listen there" in capsys.readouterr().err


def test_a_command_shows_its_run_before_that_has_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shown_on_page(tmp_path / "run"):
        address = re.search(r"http://\S+", capsys.readouterr().out)
        assert address is not None
        record_run(tmp_path / "run", steps=1)
        assert len(httpx.get(f"{address[0]}api/runs/0/episodes").json()["episodes"]) == 6
    with shown_on_page(None):
        assert capsys.readouterr().out == ""


def test_episodes_lists_the_worst_and_the_best_and_prints_one_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    record_run(run_dir, steps=5)
    assert main(["episodes", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rewards = [float(line.split()[2]) for line in lines[1:-1]]
    stored = sorted(episode.reward for episode in open_run(run_dir).episodes())
    assert rewards == pytest.approx(stored[:10] + stored[-10:], abs=1e-3)
    assert lines[-1].endswith(f"agentrl episodes {run_dir} EPISODE")
    assert main(["episodes", str(run_dir), lines[1].split()[0]]) == 0
    shown = capsys.readouterr().out
    assert "--- turn 1: prompt" in shown
    assert "--- turn 1: reply" in shown


def test_episodes_of_a_service_are_listed_with_their_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hold_store(tmp_path, "service", {}, load_config((), {"model.path": "nano"})) as store:
        sessions = SessionStore(store)
        session_id = sessions.open(0)
        sessions.keep({"id": session_id}, Outcome(reason=EndReason.FINISHED, reward=0.5), [])
    assert main(["episodes", str(tmp_path)]) == 0
    assert session_id in capsys.readouterr().out


def test_runs_lists_what_is_in_the_working_directory_with_state_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "deep" / "run"
    run_dir.parent.mkdir()
    config = record_run(run_dir, steps=2)
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "reward_mean": 0.25}\n{"step": 2, "reward_mean": 0.5}\n')
    held_out = [(0, 0.1, (0, 0.2)), (1, 0.4, (0, 1)), (2, 0.9, (0.8, 1))]
    with Store(run_dir / "store.sqlite") as store:
        store.write([InsertEvaluation(s, {"mean_reward": m, "mean_reward_95": i, "tasks": 7}) for s, m, i in held_out])
    (run_dir / "summary.json").write_text('{"steps": 2}')
    damaged = tmp_path / "damaged"
    record_run(damaged, steps=1)
    (damaged / "config.json").write_text("{")
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if "deep/run" in line]
    reached = re.escape("0.100 [0.000, 0.200] → 0.900 [0.800, 1.000]  n = 7 tasks")
    assert re.search(rf"finished +2 of {config.steps} +0\.500 +{reached} +20\d\d-", line)
    (line,) = [line for line in shown.splitlines() if "damaged" in line]
    assert "cannot be read" in line
    assert main(["runs", str(tmp_path / "nothing")]) == 0
    assert "no runs in" in capsys.readouterr().out
