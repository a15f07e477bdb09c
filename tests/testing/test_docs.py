"""docs/testing.md and docs/tasks-and-rewards.md: their code runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[2] / "docs"
TEST_OF_REWARDS = """
import anyio
from workflow import Question, run

from agentrl.testing import ScriptedModel, check_workflow, scripted_episode

TASK = Question("What is 6 times 7?", 42)


def test_a_right_and_brief_answer_earns_most() -> None:
    async def test() -> None:
        async with scripted_episode(ScriptedModel("42"), TASK) as episode:
            reward = await run(episode)
        assert dict(reward.metrics) == {"correct": 1.0, "brief": 0.98}
        assert abs(reward.value - 1.098) < 1e-9

    anyio.run(test)


def test_the_workflow_is_sound() -> None:
    anyio.run(check_workflow, run, [TASK])
"""


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


def test_the_tests_of_the_page_of_testing_pass(tmp_path: Path) -> None:
    files = ["test_agent.py", "test_environment.py", "test_workflow.py"]
    assert written("testing.md", tmp_path) == files
    assert "4 passed" in python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_workflow_of_the_page_of_rewards_earns_what_it_says(tmp_path: Path) -> None:
    assert written("tasks-and-rewards.md", tmp_path) == ["workflow.py"]
    (tmp_path / "test_workflow.py").write_text(TEST_OF_REWARDS)
    assert "2 passed" in python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
