"""Aider, by its own command: it mends a file of a repository in each of its edit formats, commits, and tries again where the tests fail."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
# Two edits of a second leave a file of the same size, whose compiled form Python would take for the newer one's.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

from aider.main import main
from asking import ANSWER, URL, hold

HOME = Path.cwd()
TEST = "import calc\n\nassert calc.add(2, 3) == 5\n"
OPTIONS = [
    *("--model", "openai/gpt-5.4", "--openai-api-base", f"{URL}/v1", "--yes-always", "--no-show-model-warnings"),
    *("--analytics-disable", "--no-check-update", "--no-show-release-notes", "--no-gitignore", "--no-pretty"),
]


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def mend(key: str, name: str, message: str, *options: str) -> str:
    folder = HOME / name
    folder.mkdir()
    os.chdir(folder)
    os.environ.pop("OPENAI_API_KEY", None)
    Path("calc.py").write_text("def add(a, b):\n    return a - b\n")
    Path("test_calc.py").write_text(TEST)
    git("init", "--quiet")
    git("config", "user.name", "me")
    git("config", "user.email", "me@example.org")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        main([*OPTIONS, "--openai-api-key", key, "--message", message, *options, "calc.py"], input=None, output=None)
    mended = "a + b" in Path("calc.py").read_text()
    return ANSWER if mended and "fix: add() adds" in git("log", "--oneline") else shown.getvalue()


WORDS = "add() is wrong. Mend it."
hold(
    diff_stream=lambda key: mend(key, "one", WORDS, "--edit-format", "diff", "--stream"),
    diff_whole=lambda key: mend(key, "two", WORDS, "--edit-format", "diff", "--no-stream"),
    whole_file=lambda key: mend(key, "three", WORDS, "--edit-format", "whole", "--stream"),
    udiff=lambda key: mend(key, "four", WORDS, "--edit-format", "udiff", "--no-stream"),
    architect=lambda key: mend(key, "five", WORDS, "--architect", "--editor-edit-format", "editor-diff"),
    tests_fail=lambda key: mend(
        key,
        "six",
        "add() is wrong. Mend it badly first.",
        *("--edit-format", "diff", "--auto-test", "--test-cmd", "python3 test_calc.py"),
    ),
)
