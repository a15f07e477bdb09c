"""The program in a model's reply."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentrl.sandboxes.grading.tests import PYTHON

# What follows a repetition here can always match, so that a search never goes back: it is linear in any text.
_FENCE_LINE = re.compile(r"^([ \t]{0,3})(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
_TAG = re.compile(r"[ \t]*([^\s`]*)")


def fenced_blocks(reply: str) -> Iterator[tuple[str, str]]:
    """Yield the tag and the code of each fenced block of a reply, in order, in time linear in it.

    A fence is closed by one of its own kind and at least its length, or by the end of the reply. The tag is the language after it, in
    lower case; "" without one. Code loses as many blanks as its fence has before it, as in an item of a list.
    """
    fence, tag, start, indent = "", "", 0, 0

    def code(end: int) -> str:
        return re.sub(rf"^[ \t]{{0,{indent}}}", "", reply[start:end].rstrip("\r\n"), flags=re.MULTILINE)

    for line in _FENCE_LINE.finditer(reply):
        space, marks, rest = line.groups()
        if not fence and "`" not in rest:
            found = _TAG.match(rest)
            fence, start, indent = marks, line.end() + 1, len(space)
            tag = found[1].strip("{}.").lower() if found else ""
        elif fence and marks.startswith(fence) and not rest.strip():
            yield tag, code(line.start())
            fence = ""
    if fence:
        yield tag, code(len(reply))


def extract_code(reply: str, names: Sequence[str] = PYTHON.names) -> str | None:
    """Return the last program in a reply: its last block tagged with one of `names`, else its last block without a tag.

    None where there is neither.
    """
    blocks = [*fenced_blocks(reply)]
    wanted = [code for tag, code in blocks if tag in names] or [code for tag, code in blocks if not tag]
    return wanted[-1] if wanted else None
