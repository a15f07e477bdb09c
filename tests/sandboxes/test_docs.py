"""What docs/grading.md and docs/sandboxes.md show is true: their scripts run, their task is one, their tables name every field."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from agentrl.sandboxes import (
    AssertTest,
    BackendName,
    CallTest,
    IOTest,
    Limits,
    TestFile,
    grade,
    load_code_task,
    open_pool,
)

DOCS = Path(__file__).parents[2] / "docs"
KINDS = {"io": IOTest, "call": CallTest, "assert": AssertTest, "file": TestFile}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def script(page: str) -> str:
    (found,) = [block for block in blocks(page, "python") if "anyio.run(main)" in block]
    return found


def printed(page: str, tmp_path: Path) -> str:
    (tmp_path / "script.py").write_text(script(page))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
def test_the_script_of_grading_runs_as_it_stands(backend: BackendName, tmp_path: Path) -> None:
    first, *rest = printed("grading.md", tmp_path).splitlines()
    assert first == "passed True apart"
    assert [line.split()[0] for line in rest] == ["0", "1", "2", "3", "3"]
    assert all("passed" in line for line in rest)


def test_the_script_of_sandboxes_runs_as_it_stands(backend: BackendName, tmp_path: Path) -> None:
    assert printed("sandboxes.md", tmp_path) == "exit 0 b'6\\n'\n"


@pytest.mark.anyio
async def test_the_task_of_grading_is_one(
    backend: BackendName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = [block for block in blocks("grading.md", "python") if "tasks.jsonl" in block]
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    (line,) = (tmp_path / "tasks.jsonl").read_text().splitlines()
    task = load_code_task(json.loads(line))
    assert [type(test) for test in task.tests] == [CallTest, AssertTest, TestFile]
    assert task.reference is not None
    async with open_pool(backend=backend) as pool:
        assert (await grade(task.reference, task.tests, pool=pool)).passed


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_a_kind_names_every_field(kind: str) -> None:
    (row,) = re.findall(rf"^\| `{kind}` \|(.*)\|$", (DOCS / "grading.md").read_text(), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", row))
    assert {field.name for field in fields(KINDS[kind])} - {"name", "limits", "compare"} <= named
    assert named <= {field.name for field in fields(KINDS[kind])} | {"exact", "tolerance", "checker"}


def test_the_table_of_limits_has_the_defaults() -> None:
    rows = re.findall(r"^\| (`[a-z_, `]+`) \| ([^|]+) \|", (DOCS / "sandboxes.md").read_text(), re.MULTILINE)
    table: dict[str, str] = {}
    for names, defaults in rows:
        if {"timeout_s", "cpu_s", "memory_mb"} & set(re.findall(r"\w+", names)) or table:
            table |= dict(zip(re.findall(r"\w+", names), defaults.split(", "), strict=True))
    expected = {field.name: "none" if field.default is None else f"{field.default:g}" for field in fields(Limits)}
    assert table == expected
