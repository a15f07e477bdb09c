"""Run the soak, or the parts of it that are named, and write how each ended into the table of tests/soak.md: `make soak PART="proxy run"`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "soak.md"
PART_LIMIT_S = 3 * 60 * 60
TEST_LIMIT_S = 40 * 60
PARTS = {
    "sandboxes": (
        "tests/sandboxes",
        "Docker engines; hostile programs and tests",
    ),
    "engine": ("tests/engine", "SGLang in all modes, servers killed at random, broadcast, adapters"),
    "proxy": ("tests/proxy", "other clients, agents' command lines, fuzzers, images"),
    "rollout": ("tests/rollout tests/system tests/store tests/tasks", "workers and workflows that hang or die"),
    "run": (
        "tests/run tests/tracking tests/test_crash_test.py",
        "kills in series, power cuts, altered run directories, an object store, trackers",
    ),
    "trainer": ("tests/trainer tests/models tests/record", "ranks, model kinds, long numeric comparisons"),
    "cluster": ("tests/cluster", "Ray clusters of several nodes that are killed"),
    "workflows": (
        "tests/workflows tests/envs tests/evaluation",
        "agents and task images in containers, long evaluations",
    ),
    "viewer": ("tests/viewer", "the page on a live run, by keyboard, on a phone, in light and dark, as axe judges it"),
    "docs": (
        "tests/cli tests/testing tests/test_python_page.py tests/test_package.py",
        "the tutorial and pages, run whole",
    ),
    "benchmarks": ("tests/benchmarks", "each benchmark at its smallest size"),
}
"""What each part holds, and the folders and files whose soak tests it runs."""
HEADER = ["part", "holds", "tests", "minutes", "ended", "commit", "result"]


def totals(junit: Path) -> dict[str, int]:
    """Return the number of tests of a run, and how many failed or were skipped."""
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    if junit.exists():
        for suite in ElementTree.parse(junit).iter("testsuite"):
            for name in counts:
                counts[name] += int(suite.get(name, 0))
    return counts


def run_part(name: str) -> list[str]:
    """Run a part, and return its row of the table."""
    folders, holds = PARTS[name]
    with tempfile.TemporaryDirectory() as scratch:
        junit = Path(scratch) / "junit.xml"
        options = ["-m", "soak", "-o", f"faulthandler_timeout={TEST_LIMIT_S}", f"--junitxml={junit}"]
        limit = f"--limit-s={PART_LIMIT_S}"
        words = [sys.executable, "scripts/run_tests.py", "--once", limit, *options, *folders.split()]
        begin = datetime.now(UTC)
        code = subprocess.run(
            words, cwd=ROOT, env={**os.environ, "AGENTRL_TEST_EVERYTHING": "1"}, check=False
        ).returncode
        end = datetime.now(UTC)
        counts = totals(junit)
    failed = counts["failures"] + counts["errors"]
    result = "passed" if code == 0 else f"{failed} failed" if failed else f"did not end: exit code {code}"
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    minutes = f"{(end - begin).total_seconds() / 60:.1f}"
    return [name, holds, str(counts["tests"]), minutes, f"{end:%Y-%m-%d %H:%M}", commit.stdout.strip(), result]


def write_row(row: list[str]) -> None:
    """Put a row into the page's table, in place of the one of the same part."""
    text = PAGE.read_text()
    rows = {cells[0]: cells for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE) if (cells := line.split(" | "))}
    rows[row[0]] = row
    lines = [HEADER, ["---"] * len(HEADER), *(rows[name] for name in PARTS if name in rows)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    head = text[: text.index("| part |")] if "| part |" in text else text
    PAGE.write_text(head + table)


def main() -> int:
    """Run the parts that the command line names, or all of them."""
    names = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        print(f"no part of the soak: {', '.join(unknown)}; there are {', '.join(PARTS)}")
        return 2
    rows = []
    for name in names:
        # A test restarts the Docker engine, which ends with the other processes of its part.
        subprocess.run(["scripts/start_sandboxes.sh"], cwd=ROOT, check=True)
        rows.append(run_part(name))
        write_row(rows[-1])
    for row in rows:
        print(f"{row[0]}: {row[2]} tests in {row[3]} min, {row[-1]}")
    return int(any(row[-1] != "passed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
