"""What is opened for episodes, and what is left of it when it fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.config import RunConfig
from agentrl.errors import EngineError, error_line
from agentrl.rollout.open_engine import open_engine

pytestmark = [pytest.mark.anyio, pytest.mark.soak]


async def test_the_log_that_a_failed_engine_names_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    empty = tmp_path / "no-model"
    empty.mkdir()
    with pytest.raises(EngineError, match="its log is ") as failed:
        async with open_engine(RunConfig(model=str(empty))):
            raise AssertionError("it serves no model")
    named = re.search(r"its log is (\S+)", str(failed.value))
    assert named is not None
    log = Path(named[1])
    assert error_line(log.read_text())[:60] in str(failed.value)
    assert log.parent.stat().st_mode & 0o077 == 0
