"""The program in a model's reply."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Which = Literal["last", "first", "best"]

_FENCE = re.compile(r"^[ \t]{0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<tag>[^\s`]*)[^\n`]*$", re.MULTILINE)


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: ```tag, code, ```."""

    tag: str
    """The language after the fence, in lower case; "" without one."""
    code: str
    closed: bool = True
    """False when the reply ends inside the block."""


def code_blocks(reply: str) -> list[CodeBlock]:
    """The fenced blocks of a reply, in order. A fence is closed by one of its own kind and at least its length."""
    blocks = []
    position = 0
    while (opening := _FENCE.search(reply, position)) is not None:
        fence, tag = opening["fence"], opening["tag"].strip("{}.").lower()
        closing = re.compile(rf"^[ \t]{{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(reply, opening.end() + 1)
        code = reply[opening.end() + 1 : end.start() if end else len(reply)]
        blocks.append(CodeBlock(tag, code.rstrip("\n"), closed=end is not None))
        position = end.end() if end else len(reply)
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
    equally long ones the last.
    """
    blocks = code_blocks(reply)
    candidates = [block for block in blocks if block.tag in languages] or [block for block in blocks if not block.tag]
    if not candidates:
        return None
    if which != "best":
        return candidates[-1 if which == "last" else 0].code
    ranked = [(*_merit(block.code, defines), index) for index, block in enumerate(candidates)]
    return candidates[max(ranked)[-1]].code


def _merit(code: str, defines: str | None) -> tuple[bool, bool, int]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, False, len(code)
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return True, defines is None or defines in names, len(code)
