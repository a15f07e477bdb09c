"""What is called by a dotted path, such as `Solution().two_sum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def follow(path: str, named: Callable[[str], Any]) -> Any:
    """Return what a path leads to. A class on the way is made an instance of.

    Args:
        path: Names with dots between them; `()` after a class says nothing more.
        named: Gives what the first name stands for.

    Raises:
        AttributeError: There is no such name.
    """
    first, *rest = path.replace("()", "").split(".")
    try:
        target = named(first)
    except AttributeError as missing:  # a function may be a method of LeetCode's class
        try:
            target = getattr(named("Solution")(), first)
        except AttributeError:
            raise missing from None
    for part in rest:
        target = getattr(target() if isinstance(target, type) else target, part)
    return target
