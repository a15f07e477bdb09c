"""Making one copy of a list, dict, set or the like what another copy of it has become."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

from agentrl.sandboxes.inside.plain_data import CHANGEABLE, inside


class BothChangedError(BaseException):
    """The tests have changed a container in a way that does not go together with what the candidate did to it."""


def snapshot(value: Any) -> Any:
    """Return an argument as it is now, which keeps none of the test's containers.

    Raises:
        RecursionError: One that holds itself.
    """
    kind = type(value)
    if kind is tuple:
        return tuple(map(snapshot, value))
    if kind not in CHANGEABLE:
        return value
    taken = copy.copy(value)
    items = [snapshot(item) for item in inside(value)]
    if isinstance(taken, dict):
        dict.update(taken, zip(taken, items, strict=True))  # a Counter's own adds
    elif isinstance(taken, list | deque):
        taken.clear()
        taken.extend(items)
    return taken


def merge(container: Any, before: Any, after: Any) -> None:
    """Do to a container of the candidate's what the tests have done to their copy of it, which was `before` and is `after`.

    The candidate may have changed it meanwhile. What is in them are the same objects.

    Raises:
        BothChangedError: Both sides have changed the same part of it.
    """
    if _is_like(container, after):  # another value that it is in has told of the same change
        return
    if _is_like(container, before):
        set_content(container, after)
    elif isinstance(container, dict) and isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            container.pop(key, None)
        for key, new in after.items():
            if key not in before or not _is_alike(before[key], new):
                container[key] = new
    elif isinstance(container, set) and isinstance(before, set) and isinstance(after, set):
        container -= before - after
        container |= after - before
    elif isinstance(container, list | deque) and _are_alike([*after][: len(before)], before):
        container.extend([*after][len(before) :])
    else:
        raise BothChangedError(f"to change a {type(container).__name__} that the candidate changes too")


def _is_like(one: Any, other: Any) -> bool:
    """Return whether two containers have the same in them."""
    if isinstance(one, set):
        return bool(one == other)
    items = isinstance(one, dict) and isinstance(other, dict)
    return _are_alike([*one], [*other]) and (not items or _are_alike([*one.values()], [*other.values()]))


def _are_alike(ones: Any, others: Any) -> bool:
    return len(ones) == len(others) and all(map(_is_alike, ones, others))


def _is_alike(one: Any, other: Any) -> bool:
    """Return whether two values are the same, or data with the same content: a NaN too, and True is not 1."""
    if one is other:
        return True
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def set_content(container: Any, content: Any) -> None:
    """Give a container what is in another of its kind."""
    if isinstance(container, list | bytearray) and type(content) is type(container):
        container[:] = content
    elif isinstance(container, dict | set) and type(content) is type(container):
        container.clear()
        container.update(content)
    elif isinstance(container, deque) and isinstance(content, deque):
        container.clear()
        container.extend(content)
