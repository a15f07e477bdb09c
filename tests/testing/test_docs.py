"""docs/testing.md and docs/tasks-and-rewards.md: their code runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[2] / "docs"


def written(page: str, folder: Path) -> list[str]:
    """Write the files of a page, and return their names."""
    found = re.findall(r'^```python title="(.*?)"\n(.*?)^```$', (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    for name, content in found:
        (folder / name).write_text(content)
    return [name for name, _ in found]


def python(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("page", "files", "tests"),
    [
        ("testing.md", ["test_agent.py", "test_environment.py", "test_workflow.py", "check_my_engine.py"], 4),
        ("tasks-and-rewards.md", ["workflow.py", "test_workflow.py"], 2),
    ],
)
def test_the_tests_of_a_page_pass(page: str, files: list[str], tests: int, tmp_path: Path) -> None:
    assert written(page, tmp_path) == files
    assert f"{tests} passed" in python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_script_that_checks_an_engine_runs(server_url: str, tmp_path: Path) -> None:
    written("testing.md", tmp_path)
    assert python(tmp_path, "check_my_engine.py", server_url) == ""
