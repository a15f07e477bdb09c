"""HumanEval's own solutions pass its own tests apart, and five cheats are never paid: a sample in the gate, all of it in the soak."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.sandboxes import BackendName, Limits, SandboxSpec, grade, load_code_task, open_pool
from agentrl.sandboxes.grading.trust import Trust, trust_of
from tests.components import missing

DATA = Path(__file__).parents[4] / "shared/data/HumanEval.jsonl.gz"
EQUAL = "class Any:\n    def __eq__(self, other): return True\n    def __abs__(self): return 0\n    __sub__ = lambda self, other: 0\n"
CHEATS = {
    "returns None": "def {name}(*args): return None",
    "passes": "def {name}(*args): pass\nimport builtins\nbuiltins.AssertionError = type('Quiet', (Exception,), {{}})",
    "is equal to everything": EQUAL + "def {name}(*args): return Any()",
    "exits when it is loaded": "raise SystemExit(0)",
    "exits in a call": "import os\ndef {name}(*args): os._exit(0)",
}

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


def problems() -> list[dict[str, Any]]:
    if not DATA.exists():
        missing(f"HumanEval is not at {DATA}")
    with gzip.open(DATA, "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.soak)])
async def test_humaneval(bubblewrap: BackendName, step: int) -> None:
    chosen = problems()[::step]
    assert len(chosen) == (164 if step == 1 else 9)
    failed: set[str] = set()
    paid: set[tuple[str, str]] = set()

    async def one(problem: dict[str, Any]) -> None:
        task = load_code_task(problem)
        assert [trust_of(test) for test in task.tests] == [Trust.APART]
        if not (await grade(str(task.reference), task.tests, pool=pool)).passed:
            failed.add(task.name)
        for cheat, source in CHEATS.items():
            if (await grade(source.format(name=problem["entry_point"]), task.tests, pool=pool)).passed:
                paid.add((task.name, cheat))

    async with open_pool(SandboxSpec(limits=Limits(timeout_s=10)), backend=bubblewrap, size=2) as pool:
        async with anyio.create_task_group() as tasks:
            for problem in chosen:
                tasks.start_soon(one, problem)
    assert (failed, paid) == (set(), set())
