"""What is made under another name is there whole, or what was there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import EngineError, UsageError
from agentrl.system.files import atomic_dir, partial_path, scratch_directory, write_whole


def test_a_directory_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    directory = tmp_path / "weights"
    for text in ("old", "new"):
        with atomic_dir(directory) as partial:
            (partial / "a").write_text(text)
            assert not directory.exists() or (directory / "a").read_text() == "old"
        assert (directory / "a").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_what_fails_half_way_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    directory = tmp_path / "weights"
    with atomic_dir(directory) as partial:
        (partial / "a").write_text("old")

    def fails_half_way() -> None:
        with atomic_dir(directory) as partial:
            (partial / "a").write_text("new")
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fails_half_way()
    assert (directory / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_what_a_crash_left_of_a_directory_is_not_in_the_next(tmp_path: Path) -> None:
    left = partial_path(tmp_path / "weights")
    left.mkdir()
    (left / "torn").touch()
    with atomic_dir(tmp_path / "weights") as partial:
        (partial / "a").touch()
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["a"]


def test_a_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (None, False),
        (UsageError("no"), False),
        (KeyError("no"), False),
        (ExceptionGroup("two", [KeyError("no"), UsageError("no")]), False),
        (EngineError("see the log"), True),
        (ExceptionGroup("two", [KeyError("no"), EngineError("see the log")]), True),
    ],
)
async def test_it_stays_for_the_errors_that_name_it_alone(
    error: Exception | None, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raised: Exception | None = None
    try:
        async with scratch_directory("agentrl-test-", kept_after=(EngineError,)) as folder:
            (folder / "engine.log").write_text("it said why")
            assert folder.stat().st_mode & 0o077 == 0
            if error is not None:
                raise error
    except Exception as caught:
        raised = caught
    assert raised is error
    assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == ([folder] if kept else [])
