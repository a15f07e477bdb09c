"""The file of the workflow, as it is when it is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.system.imports import load_file


def test_a_file_that_changed_within_a_second_is_loaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "changing.py"
    for value in range(10):
        file.write_text(f"VALUE = {value}\n")
        assert load_file(file).__dict__["VALUE"] == value
