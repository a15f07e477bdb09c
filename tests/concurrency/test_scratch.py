"""A scratch directory is gone when its context ends, but for an error whose message names a file in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.concurrency.scratch import scratch_directory
from agentrl.errors import EngineError, UsageError

pytestmark = pytest.mark.anyio


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
