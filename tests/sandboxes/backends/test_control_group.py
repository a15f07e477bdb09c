"""Control groups of version 2, on folders that stand for the kernel's: this machine need not have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandboxes import Limits
from agentrl.sandboxes.backends import control_group as module
from agentrl.sandboxes.backends.leftovers import is_dead, owner

LIMITS = Limits(memory_mb=100, disk_mb=10, processes=20)


def test_a_group_bounds_memory_and_processes(tmp_path: Path) -> None:
    group = module.make_group(tmp_path, LIMITS)
    assert (group / "memory.max").read_text() == str((100 + 10 + 64) * 2**20)
    assert (group / "pids.max").read_text() == "21"
    with pytest.raises(SandboxError, match="the control group of a sandbox cannot be made"):
        module.make_group(tmp_path / "none", LIMITS)


def test_the_group_is_made_below_the_nearest_that_hands_on_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOP", tmp_path)
    real = Path.read_text
    listed = lambda path, *a: "0::/user/app/own\n" if str(path) == "/proc/self/cgroup" else real(path, *a)  # noqa: E731
    monkeypatch.setattr(Path, "read_text", listed)
    (tmp_path / "user/app/own").mkdir(parents=True)
    for folder, handed_on in (
        ("user/app/own", ""),
        ("user/app", "cpu memory pids"),
        ("user", "memory pids"),
        ("", "memory pids"),
    ):
        (tmp_path / folder / "cgroup.subtree_control").write_text(handed_on)
        (tmp_path / folder / "cgroup.procs").write_text("")
    assert module.parent_group() == tmp_path / "user/app"
    for folder in ("user/app", "user", ""):
        (tmp_path / folder / "cgroup.subtree_control").write_text("cpu")
    assert module.parent_group() is None


def test_groups_of_dead_processes_are_removed(tmp_path: Path) -> None:
    host, boot, *_ = owner().split(":")
    dead, living = f"{host}:{boot}:999999999:1", owner()
    assert is_dead(dead)
    assert not is_dead(living)
    for name in (dead, living):
        (tmp_path / f"{module.PREFIX}{name}.abc").mkdir()
    module.remove_orphaned_groups(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == [f"{module.PREFIX}{living}.abc"]


def test_a_machine_of_the_same_name_is_not_taken_for_dead() -> None:
    host, _, pid, started = owner().split(":")
    other = f"{host}:another-boot:{pid}:{started}"
    assert is_dead(other)
    assert not is_dead(other, same_boot=True)
