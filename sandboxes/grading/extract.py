"""The program in a model's reply."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl.sandboxes.grading.tests import PYTHON

# What follows a repetition here can always match, so that a search never goes back: it is linear in any text.
_FENCE_LINE = re.compile(r"^([ \t]{0,3})(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
_TAG = re.compile(r"[ \t]*([^\s`]*)")


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: ```tag, code, ```."""

    tag: str
    """The language after the fence, in lower case; "" without one."""
    code: str


def code_blocks(reply: str) -> list[CodeBlock]:
    """Return the fenced blocks of a reply, in order, in time linear in it.

    A fence is closed by one of its own kind and at least its length, or by the end of the reply.
    """
    return [
        CodeBlock(tag, re.sub(rf"^[ \t]{{0,{indent}}}", "", reply[start:end].rstrip("\r\n"), flags=re.MULTILINE))
        for tag, start, end, indent in _find(reply)
    ]


def _find(reply: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield of each block its tag, where its code begins and ends, and how far its fence is indented, as in an item of a list."""
    fence, tag, start, indent = "", "", 0, 0
    for line in _FENCE_LINE.finditer(reply):
        space, marks, rest = line.groups()
        if not fence and "`" not in rest:
            found = _TAG.match(rest)
            fence, start, indent = marks, line.end() + 1, len(space)
            tag = found[1].strip("{}.").lower() if found else ""
        elif fence and marks.startswith(fence) and not rest.strip():
            yield tag, start, line.start(), indent
            fence = ""
    if fence:
        yield tag, start, len(reply), indent


def extract_code(reply: str, names: Sequence[str] = PYTHON.names) -> str | None:
    """Return the last program in a reply: its last block tagged with one of `names`, else its last block without a tag.

    None where there is neither.
    """
    blocks = code_blocks(reply)
    wanted = [block for block in blocks if block.tag in names] or [block for block in blocks if not block.tag]
    return wanted[-1].code if wanted else None
