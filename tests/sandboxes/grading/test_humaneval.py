"""HumanEval's own solutions pass its own tests, and functions that do nothing fail them: all of them, and on the second backend every fourth."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.sandboxes import AssertTest, BackendName, Limits, SandboxSpec, grade, open_pool
from tests.components import missing

DATA = Path(__file__).parents[4] / "shared/data/HumanEval.jsonl.gz"

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.soak]


def problems() -> list[dict[str, Any]]:
    if not DATA.exists():
        missing(f"HumanEval is not at {DATA}")
    with gzip.open(DATA, "rt") as file:
        return [json.loads(line) for line in file]


async def test_humaneval(backend: BackendName) -> None:
    passed: dict[str, set[str]] = {"canonical": set(), "return None": set()}
    chosen = problems()[:: 1 if backend == "bubblewrap" else 4]
    assert len(chosen) == (164 if backend == "bubblewrap" else 41)
    names = {problem["task_id"] for problem in chosen}

    async def one(problem: dict[str, Any], kind: str, body: str) -> None:
        test = AssertTest(code=problem["test"], entry_point=problem["entry_point"], prelude=problem["prompt"])
        if (await grade(problem["prompt"] + body, [test], pool=pool)).passed:
            passed[kind].add(problem["task_id"])

    async with open_pool(SandboxSpec(limits=Limits(timeout_s=10)), backend=backend) as pool:
        async with anyio.create_task_group() as tasks:
            for problem in chosen:
                tasks.start_soon(one, problem, "canonical", problem["canonical_solution"])
                tasks.start_soon(one, problem, "return None", "    return None\n")
    assert passed == {"canonical": names, "return None": set()}
