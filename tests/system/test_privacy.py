"""What a run writes is for its user alone, and a link in the way is not followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import anyio
import pytest

from agentrl.config import RunConfig
from agentrl.errors import EngineError
from agentrl.models import NANO
from agentrl.run.run_directory import appending, write_config
from agentrl.run.run_lock import lock_run, prepare_run_dir
from agentrl.store.store import Store
from agentrl.system.child_process import child_process
from agentrl.system.failure_text import without_secrets
from agentrl.system.files import open_private


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


async def write_log(path: Path) -> None:
    async with child_process("child", ["true"], log=path, error=EngineError):
        pass


@pytest.mark.parametrize("existing", [False, True])
def test_a_run_directory_and_all_files_in_it_are_private(tmp_path: Path, existing: bool) -> None:
    """One that was there keeps its own mode, as it may be shared on purpose."""
    run_dir = tmp_path / "runs" / "one"
    if existing:
        run_dir.mkdir(parents=True)
        run_dir.chmod(0o755)
    before = os.umask(0o022)
    try:
        config = RunConfig.model_validate({"run_dir": str(run_dir), "model": {"path": str(NANO)}})
        prepare_run_dir(run_dir)
        os.close(lock_run(run_dir))
        write_config(config)
        with appending(run_dir / "metrics.jsonl") as metrics:
            metrics.write("{}\n")
        anyio.run(write_log, run_dir / "engine.log")
        with Store(run_dir / "store.sqlite") as store:
            store.begin_restart()
            found = modes(run_dir)
    finally:
        os.umask(before)
    assert stat.S_IMODE(run_dir.stat().st_mode) == (0o755 if existing else 0o700)
    assert {"lock", "config.json", "metrics.jsonl", "engine.log", "store.sqlite", "store.sqlite-wal"} <= found.keys()
    assert set(found.values()) == {0o600}


def test_a_link_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        open_private(tmp_path / "log", "ab")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:token@host:1/x broke off", "http://host:1/x broke off"),
        ("['https://token@a', 'http://b']", "['https://a', 'http://b']"),
        ("mail me@home about http://host/path", "mail me@home about http://host/path"),
        ("http://host/~me@home", "http://host/~me@home"),
    ],
)
def test_a_url_is_shown_without_user_and_password(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
