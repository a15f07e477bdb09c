"""Files of tests are run with what lies beside them, and with nothing from the folders above."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from agentrl.sandboxes.inside.pytest_start import run_file
sys.exit(run_file("def test(beside): assert beside == 1", sys.argv[1], object()))
"""
FIXTURE = "import pytest\n@pytest.fixture\ndef beside(): return 1\n"


def test_a_conftest_above_the_tests_is_nobody_s(tmp_path: Path) -> None:
    """In the folder of all temporary files, anything may lie, also of a program that is graded."""
    folder = tmp_path / "between" / "tests"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(FIXTURE)
    for above in (tmp_path, folder.parent):
        (above / "conftest.py").write_text("raise SystemExit('it was imported')")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
