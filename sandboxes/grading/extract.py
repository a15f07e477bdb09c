"""The program in a model's reply."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.sandboxes.grading.parsed import parsed

Which = Literal["last", "first", "best"]

MAX_PARSED_CHARACTERS = 20_000
"""Of the blocks of one reply together. Python's parser takes up to a millisecond for a thousand, and cannot be interrupted."""

# What follows a repetition here can always match, so that a search never goes back: it is linear in any text.
_FENCE_LINE = re.compile(r"^([ \t]{0,3})(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
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
    """Return the fenced blocks of a reply, in order. A fence is closed by one of its own kind and at least its length.

    Takes time linear in the reply, whatever is in it.
    """
    return [_block(reply, found) for found in _find(reply)]


_Found = tuple[str, int, int, bool, int]
"""The tag of a block, where its code begins and ends, whether it is closed, and how far its fence is indented, as in an item of a list."""


def _find(reply: str) -> Iterator[_Found]:
    fence = ""  # the one that has opened a block; "" outside of blocks
    tag, start, indentation = "", 0, 0
    for line in _FENCE_LINE.finditer(reply):
        space, marks, rest = line.groups()
        if not fence:
            if "`" not in rest:
                fence, start, indentation = marks, line.end() + 1, len(space)
                tag = _TAG.match(rest)[1].strip("{}.").lower() if rest else ""  # type: ignore[index]
        elif marks.startswith(fence) and not rest.strip(" \t\r"):
            yield tag, start, line.start(), True, indentation
            fence = ""
    if fence:
        yield tag, start, len(reply), False, indentation


def _block(reply: str, found: _Found) -> CodeBlock:
    tag, start, end, closed, indentation = found
    code = reply[start:end].rstrip("\r\n")
    if indentation:
        code = re.sub(rf"^[ \t]{{0,{indentation}}}", "", code, flags=re.MULTILINE)
    return CodeBlock(tag, code, closed)


def extract_code(
    reply: str,
    languages: Sequence[str] = ("python", "python3", "py"),
    which: Which = "last",
    *,
    defines: str | None = None,
) -> str | None:
    """Return the program in a reply.

    The first, the last or the best of its blocks in one of these `languages`, or, when none is so tagged, of those without a tag.

    None when there is no block.

    The best block is one that is valid Python, and defines the name `defines` if one is given; of several the longest, and of
    equally long ones the last. Of very long blocks it is not known whether they are valid: the first that would take the reply
    beyond MAX_PARSED_CHARACTERS, from its end backwards, and those before it, come after the valid ones.
    """
    found = list(_find(reply))
    wanted = [one for one in found if one[0] in languages] or [one for one in found if not one[0]]
    if not wanted:
        return None
    if which != "best":
        return _block(reply, wanted[-1 if which == "last" else 0]).code
    best, best_merit = wanted[-1], (False, False, -1)
    budget = MAX_PARSED_CHARACTERS
    for one in reversed(wanted):
        length = one[2] - one[1]
        budget -= length + 1
        merit = (*_merit(_block(reply, one).code, defines), length) if budget >= 0 else (False, False, length)
        if merit > best_merit:
            best, best_merit = one, merit
    return _block(reply, best).code


def _merit(code: str, defines: str | None) -> tuple[bool, bool]:
    """Return whether this is valid Python, and then whether it defines the name."""
    if (tree := parsed(code)) is None:
        return False, False
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return True, defines is None or defines in names
