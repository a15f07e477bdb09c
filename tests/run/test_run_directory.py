"""Whose a run directory is, and what a crash can do to the files in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, StoreError
from agentrl.rollout.step_figures import figures
from agentrl.rollout.store import Store
from agentrl.run.run_directory import (
    appending,
    check_run_dir,
    config_text,
    lock_run,
    read_config,
    read_metrics,
    remove_unfinished,
    write_whole,
)

pytestmark = pytest.mark.timeout(120)

HOLD = """
import subprocess, sys
from pathlib import Path
from agentrl.run.run_directory import lock_run
lock = lock_run(Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"], pass_fds=[lock])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_run_on_the_same_directory_is_refused_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    """Its trainer, which still writes, holds on a moment longer."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=f"is in use by the run of process {holder.pid}; wait for it, or end it"):
            lock_run(tmp_path)
        with pytest.raises(StoreError, match=f"is in use by the run of process {holder.pid}"):
            check_run_dir(tmp_path, resume=False)
        holder.kill()
        holder.wait(10)
    check_run_dir(tmp_path, resume=False)
    lock = lock_run(tmp_path)
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    os.close(lock)


def test_a_line_that_a_crash_tore_is_cut_off_and_the_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3}\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 3}]
    with appending(path) as log:
        log.write(json.dumps({"step": 2, "loss": 1}) + "\n")
        log.write(json.dumps({"step": 1, "loss": 2}) + "\n")
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2}], "step 2 was lost, and is to be taken again"
    with appending(path) as log:
        log.write('{"loss": 1}\n3\n{"step": true}\n{"step": "x"}\n')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1], "lines that are none of a step are passed over"
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


def test_a_configuration_that_cannot_be_read_comes_from_the_store_or_is_one_clear_line(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    with pytest.raises(StoreError, match="holds no run to resume"):
        read_config(tmp_path)
    for damaged in ("", '{"seed": ', "[]x", "7"):
        config.write_text(damaged)
        with pytest.raises(StoreError, match=r"config\.json cannot be read .* no store has a copy of it"):
            read_config(tmp_path)
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart("tasks", '{"seed": 1}')
        store.begin_restart("tasks", '{"seed": 2}')
    assert read_config(tmp_path).seed == 2
    config.write_text('{"seed": 3}')
    assert read_config(tmp_path).seed == 3


def test_a_run_that_was_copied_or_moved_is_the_one_in_the_directory_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its configuration says, in config.json or in the store, and wherever the command is started."""
    original, copy = tmp_path / "runs" / "original", tmp_path / "copy"
    for stored in (str(original), "runs/original", "copy", "/dev/null", None):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        text = json.dumps({"seed": 5} | ({"run_dir": stored} if stored else {}))
        (copy / "config.json").write_text(text)
        for place, named in ((tmp_path, copy), (tmp_path, Path("copy")), (copy, Path())):
            monkeypatch.chdir(place)
            assert (read_config(named).run_dir, read_config(named).seed) == (str(named), 5)
        (copy / "config.json").unlink()
        with Store(copy / "store.sqlite") as store:
            store.begin_restart("tasks", text)
        assert (read_config(copy).run_dir, read_config(copy).seed) == (str(copy), 5)
    assert "run_dir" not in json.loads(config_text(read_config(copy)))
    with pytest.raises(ConfigError, match=r"the run in .* stays where it is"):
        read_config(copy, {"run_dir": str(original)})


def test_figures_are_finite_numbers() -> None:
    rows = [{"a": value} for value in (1, 2.5, float("nan"), float("inf"), True, None, "3")]
    assert figures(rows, "a") == [(1,), (2.5,)]
