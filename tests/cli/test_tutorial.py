"""docs/tutorial.md: its files are written, its commands run, and what they print is what it says they print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the file that it names, its lines."""

    language: str
    file: str
    lines: list[str]


def blocks() -> list[Block]:
    found = re.findall(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, file, content.splitlines()) for language, file, content in found]


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """(command, the lines that it is said to print) of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def plain(line: str) -> str:
    """A line without its numbers, its spacing, and what the model said."""
    line = re.sub(r"reply \(episode .*", "reply", line)
    return " ".join(re.sub(r"-?\d[\d.,]*", "#", line).split())


def check_output(command: str, expected: list[str], printed: list[str]) -> None:
    """All lines in their order; `...` stands for any number of them, up to the last that fits what follows."""
    position, free = 0, False
    shown = [plain(line) for line in printed]
    for line in expected:
        if line == "...":
            free = True
            continue
        wanted = plain(line)
        rest = shown[position:]
        assert wanted in (rest if free else rest[:1]), f"{command} did not print {line!r} but:\n" + "\n".join(printed)
        place = len(rest) - 1 - rest[::-1].index(wanted) if free else 0
        position += place + 1
        free = False
    assert free or position == len(shown), f"{command} printed more:\n" + "\n".join(printed[position:])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_command_of_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = []
    for block in blocks():
        if block.language == "python":
            (folder / block.file).write_text("\n".join(block.lines) + "\n")
        for command, expected in commands(block) if block.language == "console" else ():
            if command.startswith("cd "):
                folder = folder / command.removeprefix("cd ")
                continue
            done = subprocess.run(
                command,
                shell=True,
                cwd=folder,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=900,
            )
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            check_output(command, expected, done.stdout.splitlines())
            ran.append(command.split()[0])
    assert ran.count("agentrl") == 4
    for run in ("first-run", "run"):
        summary = json.loads((folder / run / "summary.json").read_text())
        assert summary["eval_after"] > summary["eval_before"] + 0.1, run
