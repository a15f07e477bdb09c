"""Weights in shared memory belong to a living run, are nobody else's to read, and are removed when their run is gone."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config import RunConfig
from agentrl.models import NANO
from agentrl.run.run_directory import published_bytes, weights_directory
from agentrl.system.locks import PREFIX, SHARED_MEMORY, remove_abandoned, shared_memory_directory

HOLD = """
import sys
from agentrl.system.locks import shared_memory_directory
with shared_memory_directory("a run") as directory:
    (directory / "v0").mkdir()
    (directory / "v0" / "model.safetensors").write_bytes(b"weights")
    print(directory, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_run_left_is_removed_by_the_next_and_a_living_run_keeps_its_own() -> None:
    command = [sys.executable, "-c", HOLD]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living,
    ):
        assert killed.stdout is not None
        assert living.stdout is not None
        left, kept = Path(killed.stdout.readline().strip()), Path(living.stdout.readline().strip())
        killed.kill()
        killed.wait(40)
        assert (left / "v0" / "model.safetensors").exists()
        with shared_memory_directory() as own:
            assert not left.exists()
            assert (kept / "v0" / "model.safetensors").exists()
            remove_abandoned(SHARED_MEMORY)
            assert own.exists()
        assert not own.exists()
        assert living.stdin is not None
        living.stdin.close()
        living.wait(40)
    assert not kept.exists()


def test_a_directory_cannot_be_entered_by_others() -> None:
    with shared_memory_directory("run") as first, shared_memory_directory() as second:
        assert first != second
        assert stat.S_IMODE(first.stat().st_mode) == 0o700
        assert stat.S_IMODE((first / "owner").stat().st_mode) == 0o600


def test_links_and_files_of_that_name_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    link, file = (SHARED_MEMORY / f"{PREFIX}{kind}-{os.getpid()}" for kind in ("link", "file"))
    link.symlink_to(tmp_path)
    file.write_text("not ours")
    try:
        remove_abandoned(SHARED_MEMORY)
        assert (tmp_path / "precious").read_text() == "kept"
        assert link.is_symlink()
        assert file.exists()
    finally:
        link.unlink()
        file.unlink()


def test_weights_pass_through_the_run_directory_where_shared_memory_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig.model_validate({"run_dir": str(tmp_path / "run"), "model": {"path": str(NANO)}})
    assert published_bytes(config) > 3_000_000
    with weights_directory(config) as directory:
        assert directory.parent == SHARED_MEMORY
    monkeypatch.setattr("agentrl.run.run_directory.PUBLISHED_VERSIONS", 10**9)
    with weights_directory(config) as directory:
        assert directory == tmp_path / "run" / "weights"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not os.path.exists(directory)


def test_no_directory_is_left_by_a_start_that_failed_or_was_killed_in_its_middle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as lacking:
        lacking.setattr("agentrl.system.locks.SHARED_MEMORY", tmp_path)  # where no other run begins meanwhile
        lacking.setattr("agentrl.system.locks.fcntl.flock", fails)
        with pytest.raises(OSError, match="Too many open files"):
            shared_memory_directory().__enter__()
    assert list(tmp_path.iterdir()) == []
    old, young = (SHARED_MEMORY / f".{PREFIX}{name}-{os.getpid()}" for name in ("old", "young"))
    try:
        for path in (old, young):
            path.mkdir(mode=0o700)
        os.utime(old, (0, 0))
        remove_abandoned(SHARED_MEMORY)
        assert (old.exists(), young.exists()) == (False, True), "a young one may be about to get its name"
    finally:
        for path in (old, young):
            shutil.rmtree(path, ignore_errors=True)
