"""Check that each package keeps its budget of code lines, and each file the rules of budgets.toml: a part of `make lint`.

`python -m scripts.budgets --lower` writes today's numbers into budgets.toml where they are lower. Raising one is a commit of its own that says why.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from benchmarks.code_size import code_lines

ROOT = Path(__file__).parents[1]
BUDGETS = ROOT / "budgets.toml"
LONGEST_FILE = 400
SHORTEST_FILE = 25
UNCLEAR = re.compile(
    r"(What|Who|Whoever|Those|So)\b|.*\b(nobody|anybody|meanwhile|whatever|as it stands|goes on from|is told of|for good)\b"
)
"""A summary of a docstring that a newcomer reads twice: a noun clause, or an idiom of ours."""


def package(name: str) -> str:
    """Return the package that a file counts for: a folder of the root, or one of agentrl's."""
    parts = Path(name).parts
    return "/".join(parts[:2]) if parts[0] == "agentrl" and len(parts) > 2 else parts[0]


def unclear_summaries(source: str) -> int:
    """Count the docstrings of a module whose summary is no plain sentence."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return sum(bool(UNCLEAR.match(text.partition("\n")[0])) for text in texts)


def measured(packages: set[str]) -> Counter[str]:
    """Return the code lines of each package, and for each rule how many files or docstrings break it."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: Counter[str] = Counter()
    for name in listed.splitlines():
        if package(name) not in packages or not (ROOT / name).exists():
            continue
        source = (ROOT / name).read_text()
        found[package(name)] += (lines := code_lines(source))
        if package(name) != "tests":
            found["files over 400 lines"] += len(source.splitlines()) > LONGEST_FILE
            found["files under 25 code lines"] += lines < SHORTEST_FILE and not name.endswith("__init__.py")
            found["unclear summaries"] += unclear_summaries(source)
    return found


def main() -> int:
    """Compare the tree with budgets.toml."""
    text = BUDGETS.read_text()
    budgets = {name: budget for table in tomllib.loads(text).values() for name, budget in table.items()}
    found = measured(set(budgets))
    if "--lower" in sys.argv:
        for name, budget in budgets.items():
            text = text.replace(f'"{name}" = {budget}', f'"{name}" = {min(budget, found[name])}')
        BUDGETS.write_text(text)
    for name, budget in budgets.items():
        if found[name] > budget:
            print(f"budgets.toml: {name}: {found[name]}, and {budget} are allowed")
    return int(any(found[name] > budget for name, budget in budgets.items()))


if __name__ == "__main__":
    sys.exit(main())
