"""Whose a run directory is, and what a crash can do to the files in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agentrl.config.run import ModelConfig, RunConfig, config_text
from agentrl.errors import ConfigError, DiskError, StoreError
from agentrl.run import run_lock
from agentrl.run.run_directory import (
    appending,
    read_config,
    read_metrics,
    remove_unfinished,
    write_config,
)
from agentrl.run.run_lock import check_run_dir, hold_run_dir, lock_run, prepare_run_dir
from agentrl.run.summary import metric_values
from agentrl.run.training_loop import evaluate_held_out
from agentrl.store.changes import InsertEvaluation
from agentrl.store.rewards import evaluations
from agentrl.store.store import Store
from agentrl.system.files import write_whole
from agentrl.system.locks import DirectoryInUseError, check_unlocked

HOLD = """
import subprocess, sys
from pathlib import Path
from agentrl.run.run_lock import lock_run
lock = lock_run(Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"], pass_fds=[lock])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_run_on_the_same_directory_is_told_whose_it_is_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    """Its trainer, which still writes, holds on a moment longer."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), "--key=secret"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        who = (
            rf"process {holder.pid} on {socket.gethostname()} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \(-c {tmp_path}\)"
        )
        with pytest.raises(StoreError, match=f"is in use by {who}; wait for it, or end it"):
            lock_run(tmp_path)
        holder.kill()
        holder.wait(40)
    lock = lock_run(tmp_path)
    assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())
    os.close(lock)


def test_a_line_that_a_crash_tore_is_cut_off_and_the_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3}\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 3}]
    with appending(path) as log:
        log.write(json.dumps({"step": 2, "loss": 1}) + "\n")
        log.write(json.dumps({"step": 1, "loss": 2}) + "\n")
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2}], "step 2 was lost, and is to be taken again"
    path.unlink()
    with appending(path) as log:
        log.write('{"step": 1}\n')
    assert read_metrics(tmp_path) == [{"step": 1}]


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_whole(path, "old")
    (tmp_path / "config.json.partial").write_text("what a crash left")
    write_whole(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    assert path.read_text() == "new"


def test_checkpoints_that_a_crash_left_half_made_are_removed(tmp_path: Path) -> None:
    for name in ("step-000002", "step-000004", "step-000006.partial", "best", "notes.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    remove_unfinished(tmp_path, [Path("elsewhere/checkpoints/step-000004")])
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "best",
        "notes.partial",
        "step-000002",
    ]


def test_a_configuration_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run to resume"):
        read_config(tmp_path)
    for damaged in ("", '{"seed": ', "[]x", "7"):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(StoreError, match=r"config\.json cannot be read .* restore it, or begin a new run"):
            read_config(tmp_path)


def test_a_run_that_was_copied_or_moved_is_the_one_in_the_directory_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its configuration says, and wherever the command is started."""
    original, copy = tmp_path / "runs" / "original", tmp_path / "copy"
    for stored in (str(original), "runs/original", "copy", "/dev/null", None):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        text = json.dumps({"seed": 5} | ({"run_dir": stored} if stored else {}))
        (copy / "config.json").write_text(text)
        for place, named in ((tmp_path, copy), (tmp_path, Path("copy")), (copy, Path())):
            monkeypatch.chdir(place)
            assert (read_config(named).run_dir, read_config(named).seed) == (str(named), 5)
    assert "run_dir" not in json.loads(config_text(read_config(copy)))
    with pytest.raises(ConfigError, match=r"the run in .* stays where it is"):
        read_config(copy, {"run_dir": str(original)})


def test_figures_are_finite_numbers() -> None:
    rows = [{"a": value} for value in (1, 2.5, float("nan"), float("inf"), True, None, "3")]
    assert metric_values(rows, "a") == [(1,), (2.5,)]


def test_a_run_that_came_and_went_meanwhile_is_seen_once_the_directory_is_held(tmp_path: Path) -> None:
    """The check before everything is loaded is one thing, the lock another: what lies between them may be minutes."""
    run_dir = tmp_path / "run"
    config = RunConfig(run_dir=str(run_dir))
    check_run_dir(run_dir, resume=False)
    with hold_run_dir(config, resume=False):  # of another process
        (run_dir / "store.sqlite").touch()
    with (
        pytest.raises(StoreError, match=r"holds a run already; go on with --resume .*another `run_dir`"),
        hold_run_dir(config, resume=False),
    ):
        pytest.fail("the run of the other process is overwritten")
    (run_dir / "store.sqlite").unlink()
    with pytest.raises(StoreError, match="holds no run to resume"), hold_run_dir(config, resume=True):
        pytest.fail("there is no run that could go on")
    os.close(lock_run(run_dir))  # whoever was refused does not hold it


def test_who_only_asks_whether_a_run_goes_on_keeps_none_from_starting(tmp_path: Path) -> None:
    """A notebook asks for `run.status` at the moment at which it starts the run again."""
    os.close(lock_run(tmp_path))  # the last owner is this process, which is alive
    asking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    check_unlocked(tmp_path)
    end = threading.Timer(0.3, os.close, [asking])
    end.start()
    lock = lock_run(tmp_path)
    end.join()
    with pytest.raises(DirectoryInUseError):
        check_unlocked(tmp_path)
    os.close(lock)
    check_unlocked(tmp_path)


def test_a_process_that_outlives_the_run_that_started_it_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "ORPHAN_TIMEOUT_S", 0.2)
    lock = lock_run(tmp_path)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    (tmp_path / "lock").write_text(f"{ended.pid} {socket.gethostname()} 2026-11-30 08:00:00 agentrl train")
    with pytest.raises(StoreError, match="in use by a process of one that has ended; wait"):
        lock_run(tmp_path)
    os.close(lock)


def test_a_run_does_not_go_on_with_another_model(tmp_path: Path) -> None:
    began = RunConfig(run_dir=str(tmp_path), model=ModelConfig(path="one"))
    write_config(began)
    (tmp_path / "store.sqlite").touch()
    other = began.model_copy(update={"model": ModelConfig(path="another")})
    refusal = f"model.path: the run in {tmp_path} began with the model one, and cannot go on with another; leave"
    with pytest.raises(ConfigError, match=refusal), hold_run_dir(other, resume=True):
        pytest.fail("it goes on")
    absolute = began.model_copy(update={"model": ModelConfig(path=str(Path("one").absolute()))})
    for same in (began, absolute):
        with hold_run_dir(same, resume=True) as lock:
            os.fstat(lock)


def test_a_start_on_a_full_disk_is_no_wrong_input_and_with_room_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(run_lock, "write_whole", full)
        with pytest.raises(DiskError, match="No space left on device; make room"):
            prepare_run_dir(tmp_path)
    prepare_run_dir(tmp_path)


def test_an_evaluation_stands_when_a_start_was_killed_after_it(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        store.write([InsertEvaluation(0, {"mean_reward": 0.5})])
        run: Any = SimpleNamespace(
            store=store, held_out=[{"question": "1 + 1"}], trainer=SimpleNamespace(weights=SimpleNamespace(version=0))
        )
        anyio.run(evaluate_held_out, run)
        assert store.read(evaluations) == {0: {"mean_reward": 0.5}}
