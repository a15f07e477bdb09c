"""What a Dockerfile says before anybody builds it: the folder that its programs start in, and what it copies of the folder it is built from.

It is a guess at a language of Docker's: what is not understood, such as a variable in a path, is left to the build.
"""

from __future__ import annotations

import json
import os.path
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase

_HEREDOC = re.compile(
    r"""'[^']*' | "(?:\\.|[^"\\])*" | (?<!\S) \d* <<-? (?: (?P<quote>['"]) (?P<quoted>.+?) (?P=quote) | (?P<bare>[\w.-]+) )""",
    re.VERBOSE,
)
"""A word that begins with `<<`; what stands in quotes is none, nor is `$((1<<3))` or `<<<`."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name, in capital letters, and the words of each instruction. Here-documents are left out."""
    lines = iter(text.splitlines())
    for line in lines:
        whole = ""
        while line is not None:
            if line.lstrip().startswith("#") or (whole and not line.strip()):
                pass
            elif line.rstrip().endswith("\\"):
                whole += line.rstrip()[:-1] + " "
            else:
                whole += line
                break
            if not whole:
                break
            line = next(lines, None)  # type: ignore[assignment]
        name, *rest = whole.split(None, 1) or [""]
        words = "".join(rest).strip()
        if not name:
            continue
        yield name.upper(), words
        if name.upper() in ("RUN", "COPY", "ADD"):
            for found in _HEREDOC.finditer(words):
                if end := found["quoted"] or found["bare"]:
                    for below in lines:
                        if below.strip() == end:
                            break


def workdir_of(text: str) -> str | None:
    """Return the folder that programs of the image start in; None where the file alone does not say."""
    workdir: str | None = None
    for name, words in instructions(text):
        if name == "FROM":
            workdir = None
        if name != "WORKDIR":
            continue
        path = words.strip("\"'")
        if "$" in path or (workdir is None and not path.startswith("/")):
            workdir = None if "$" in path or not path.startswith("/") else path
        else:
            workdir = os.path.normpath(os.path.join(workdir or "/", path))
    return workdir


def copied(text: str, names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the COPY and ADD instructions that name one of `names`, and those that take it with all else.

    Args:
        text: The Dockerfile.
        names: Names of files and folders right in the folder that it is built from.
    """
    naming, sweeping = [], []
    for name, words in instructions(text):
        if name not in ("COPY", "ADD"):
            continue
        for source in _sources(words):
            # Nothing is above the folder: `..` of it is the folder itself.
            first = os.path.normpath(f"/{source}").lstrip("/").partition("/")[0] or "."
            if first in names:
                naming.append(f"{name} {words}")
            elif first == "." or any(fnmatchcase(one, first) for one in names):
                sweeping.append(f"{name} {words}")
    return naming, sweeping


def _sources(words: str) -> list[str]:
    flags = []
    while words.startswith("--"):
        flag, *rest = words.split(None, 1)
        flags.append(flag)
        words = "".join(rest)
    if any(flag.startswith("--from") for flag in flags):
        return []
    try:
        paths = _array(words) or shlex.split(words)
    except ValueError:
        return []
    return [path for path in paths[:-1] if isinstance(path, str) and not path.startswith("<<") and "://" not in path]


def _array(words: str) -> list[object]:
    """Return the paths of the form in JSON; none where `[` begins a pattern."""
    try:
        paths = json.loads(words) if words.startswith("[") else []
    except (ValueError, RecursionError):
        return []
    return paths if isinstance(paths, list) else []
