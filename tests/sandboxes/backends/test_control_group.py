"""Control groups: found where they may be made, entered before the first instruction, and gone with their sandbox."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.sandboxes import BackendName, Limits, open_sandbox
from agentrl.sandboxes.backends import control_group as module
from agentrl.sandboxes.backends.control_group import (
    ControlGroup,
    make_group,
    parent_groups,
    remove_group,
    remove_orphaned_groups,
)
from agentrl.sandboxes.backends.owner import is_dead
from tests.components import missing

pytestmark = pytest.mark.anyio


def groups() -> list[Path]:
    parents = parent_groups()
    if parents is None:
        return missing("no control group may be made here: run as root")
    return [folder for parent in parents.values() for folder in parent.glob(f"agentrl.*:{os.getpid()}:*")]


async def test_a_sandbox_has_a_group_for_as_long_as_it_lives(bubblewrap: BackendName) -> None:
    assert await in_thread(groups) == []
    async with open_sandbox(backend=bubblewrap, limits=Limits(memory_mb=100, disk_mb=10, processes=20)) as sandbox:
        folders = await in_thread(groups)
        assert [file.read_text() for folder in folders for file in folder.glob("pids.max")] == ["22\n"]
        assert all((folder / "cgroup.procs").read_text() for folder in folders)
        write = "for file in $(find /sys/fs/cgroup -type f); do (echo 9 > $file) 2>/dev/null && echo $file; done; true"
        done = await sandbox.run(["sh", "-c", f"find /sys/fs/cgroup -name 'memory.*' | grep -q . && {write}"])
        assert (done.exit_code, done.stdout) == (0, b""), (done.stdout, done.stderr)
    assert await in_thread(groups) == []


async def test_groups_of_the_dead_are_removed(bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_one() -> ControlGroup:
        with monkeypatch.context() as patch:
            patch.setattr(module, "owner", lambda: dead)
            return make_group(parents, Limits())

    parents = await in_thread(parent_groups)
    if parents is None:
        missing("no control group may be made here: run as root")
    host, boot, *_ = (await in_thread(module.owner)).split(":")
    dead = f"{host}:{boot}:1:no-such-start"
    left = await in_thread(leave_one)
    assert all(folder.exists() for folder in left.folders.values())
    await in_thread(remove_orphaned_groups, parents)
    assert not any(folder.exists() for folder in left.folders.values())


def test_who_lives_is_not_taken_for_dead_for_want_of_a_descriptor() -> None:
    living = module.owner()
    dead = ":".join([*living.split(":")[:2], "1", "no-such-start"])
    assert is_dead(dead)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        found = is_dead(living), is_dead(dead)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == (False, False)


async def test_what_is_left_in_a_group_ends_with_it(bubblewrap: BackendName) -> None:
    """As the child of a bubblewrap that is killed before it has told the child to go on."""
    parents = await in_thread(parent_groups)
    if parents is None:
        missing("no control group may be made here: run as root")
    group = await in_thread(make_group, parents, Limits())
    async with await anyio.open_process(["sleep", "600"]) as left:
        for folder in group.folders.values():
            (folder / "cgroup.procs").write_text(str(left.pid))
        with anyio.fail_after(40):
            await in_thread(remove_group, group)
            assert await left.wait() == -signal.SIGKILL
    assert not any(folder.exists() for folder in group.folders.values())


@pytest.mark.parametrize(
    ("handed_on", "expected"),
    [("memory pids", "user@1000.service"), ("cpu memory pids", "user@1000.service"), ("cpu", None)],
)
def test_version_2_is_used_where_it_is_delegated(handed_on: str, expected: str | None, tmp_path: Path) -> None:
    """The nearest group above ours that hands on memory and pids: one that has processes of its own never does."""
    own = tmp_path / "user@1000.service" / "app.slice" / "run.scope"
    own.mkdir(parents=True)
    for folder, controllers in ((own, ""), (own.parent, ""), (own.parent.parent, handed_on), (tmp_path, "")):
        (folder / "cgroup.subtree_control").write_text(controllers)
        (folder / "cgroup.procs").write_text("")
    found = module._delegated(tmp_path, own)
    assert found == ({"": tmp_path / expected} if expected else None)


@pytest.mark.soak
@pytest.mark.parametrize(
    "holds",
    [
        "import os\nfd = os.memfd_create('x')\nfor _ in range(60): os.write(fd, b'x' * 2**20)\n",
        "import mmap\nhoard = mmap.mmap(-1, 60 * 2**20)\nfor n in range(60): hoard.write(b'x' * 2**20)\nhoard.madvise(mmap.MADV_DONTNEED)\n",
        "hoard = b'x' * (60 * 2**20)\n",
    ],
    ids=["a file of memory", "shared memory", "memory"],
)
async def test_the_peak_has_all_that_the_group_is_charged_for(backend: BackendName, holds: str) -> None:
    if await in_thread(parent_groups) is None:
        missing("no control group may be made here: run as root")
    async with open_sandbox(backend=backend) as sandbox:
        done = await sandbox.run_python(code=f"{holds}import time\ntime.sleep(0.2)")
        assert 60 < done.peak_memory_bytes / 2**20 < 120, done
        # Files in the folders are bounded by disk_mb, and no memory of the program's.
        code = "import time\nwith open('/sandbox/x', 'wb') as file:\n    for _ in range(50): file.write(b'x' * 2**20)\ntime.sleep(0.2)"
        done = await sandbox.run_python(code=code)
        assert done.ok
        assert done.peak_memory_bytes / 2**20 < 40
