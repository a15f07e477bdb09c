"""The program in a model's reply."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Which = Literal["last", "first", "best"]

MAX_PARSED_CHARACTERS = 20_000
"""Of the blocks of one reply together. Python's parser takes up to a millisecond for a thousand, and cannot be interrupted."""

# What follows a repetition here can always match, so that a search never goes back: it is linear in any text.
_FENCE_LINE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
_TAG = re.compile(r"[ \t]*([^\s`]*)")


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: ```tag, code, ```."""

    tag: str
    """The language after the fence, in lower case; "" without one."""
    code: str
    closed: bool = True
    """False when the reply ends inside the block."""


def code_blocks(reply: str) -> list[CodeBlock]:
    """The fenced blocks of a reply, in order. A fence is closed by one of its own kind and at least its length.

    Takes time linear in the reply, whatever is in it.
    """
    blocks = []
    opening: tuple[str, str, int] | None = None  # its fence, its tag, where its code starts
    for line in _FENCE_LINE.finditer(reply):
        fence, rest = line[1], line[2]
        if opening is None:
            if "`" not in rest:
                tag = _TAG.match(rest)
                opening = (fence, tag[1].strip("{}.").lower() if tag else "", line.end() + 1)
        elif fence[0] == opening[0][0] and len(fence) >= len(opening[0]) and not rest.strip(" \t\r"):
            blocks.append(CodeBlock(opening[1], reply[opening[2] : line.start()].rstrip("\r\n")))
            opening = None
    if opening is not None:
        blocks.append(CodeBlock(opening[1], reply[opening[2] :].rstrip("\r\n"), closed=False))
    return blocks


def extract_code(
    reply: str,
    languages: Sequence[str] = ("python", "python3", "py"),
    which: Which = "last",
    *,
    defines: str | None = None,
) -> str | None:
    """The program in a reply: the first, the last or the best of its blocks in one of these `languages`, or, when none is
    so tagged, of those without a tag. None when there is no block.

    The best block is one that is valid Python, and defines the name `defines` if one is given; of several the longest, and of
    equally long ones the last. Of very long blocks it is not known whether they are valid: the first that would take the reply
    beyond MAX_PARSED_CHARACTERS, from its end backwards, and those before it, come after the valid ones.
    """
    blocks = code_blocks(reply)
    candidates = [block for block in blocks if block.tag in languages] or [block for block in blocks if not block.tag]
    if not candidates:
        return None
    if which != "best":
        return candidates[-1 if which == "last" else 0].code
    best = candidates[-1].code
    best_merit = (False, False, -1)
    budget = MAX_PARSED_CHARACTERS
    for block in reversed(candidates):
        budget -= len(block.code) + 1
        merit = (*_merit(block.code, defines), len(block.code)) if budget >= 0 else (False, False, len(block.code))
        if merit > best_merit:
            best, best_merit = block.code, merit
    return best


def _merit(code: str, defines: str | None) -> tuple[bool, bool]:
    """Whether this is valid Python, and then whether it defines the name."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, False
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return True, defines is None or defines in names
