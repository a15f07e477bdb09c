"""docs/python.md: its script runs as it stands, and its notebook cell in an event loop that runs already."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_script_trains_and_what_reads_its_run_shows_its_tokens(tmp_path: Path) -> None:
    script, reading = python_blocks()
    printed = []
    for name, code in (("train.py", script), ("read.py", reading)):
        (tmp_path / name).write_text(code)
        done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    trained, read = printed
    assert "finished after 2 steps" in trained
    assert re.search(r"^step    2  reward", trained, re.MULTILINE)
    assert re.search(r"^mean reward \d\.\d{3}, pass@2 \d\.\d{3}$", trained, re.MULTILINE)
    assert read.startswith("finished 0.0001 2\n")
    assert "--- turn 1: prompt\n<|im_start|>system" in read
    assert re.search(r"^ +-?\d+\.\d{3} '<\|im_end\|>'$", read, re.MULTILINE)


def test_a_cell_of_a_notebook_awaits_in_the_loop_that_runs(server_url: str, tmp_path: Path) -> None:
    """A notebook compiles its cells with top-level await, and awaits what comes of them in its own event loop."""
    setup, _ = python_blocks()[0].split("async def main()")
    cell = (
        "result = await agentrl.evaluate(config.model_copy(update={'engine': engine, 'run_dir': ''}), workflow=workflow,"
        " tasks=distinct_tasks(2, seed=2))"
    )
    assert "await agentrl.train(config, workflow=workflow, tasks=tasks)" in PAGE

    async def notebook() -> dict[str, object]:
        from agentrl.config import EngineConfig

        names: dict[str, object] = {"__name__": "cells", "engine": EngineConfig(urls=[server_url])}
        for source in (setup, cell):
            code = compile(source, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if (returned := eval(code, names)) is not None:
                await returned
        return names

    result = asyncio.run(asyncio.wait_for(notebook(), 60))["result"]
    assert [len(result.episodes), result.tasks, result.failed] == [4, 2, 0]  # type: ignore[attr-defined]
