"""One copy of a list, dict, set or the like made as another copy of it has become, with what is in it still the same objects."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from typing import Any

from agentrl.sandboxes.inside.plain_data import CHANGEABLE, inside, is_changeable

MOST_MOVED = 100
"""Items that are looked for among the others of their list, where it has changed."""


class BothChangedError(BaseException):
    """The tests have changed a container in a way that does not go together with what the candidate did to it."""


def snapshot(value: Any) -> Any:
    """An argument as it is now, which keeps none of the test's containers."""
    if type(value) is list:
        return [snapshot(item) for item in value]
    if type(value) is tuple:
        return tuple(snapshot(item) for item in value)
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    return copy.copy(value) if type(value) in CHANGEABLE else value


def merge(container: Any, before: Any, after: Any) -> None:
    """Do to a container of the candidate's what the tests have done to their copy of it, which was `before` and is `after`. The
    candidate may have changed it meanwhile. Raises BothChangedError."""
    if isinstance(container, tuple):
        for own, old, new in zip(container, before, after, strict=True):
            if is_changeable(own):
                merge(own, old, new)
    elif isinstance(container, dict) and isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            container.pop(key, None)
        for key, new in after.items():
            old, own = before.get(key), container.get(key)
            if key in before and type(old) is type(new) and old == new:
                continue
            if type(own) in CHANGEABLE and type(own) is type(old) is type(new):
                merge(own, old, new)
            else:
                container[key] = new
    elif isinstance(container, set) and isinstance(before, set) and isinstance(after, set):
        container -= before - after
        container |= after - before
    elif container == before:
        replace_content(container, after)
    elif isinstance(container, list | deque) and list(after)[: len(before)] == list(before):
        container.extend(list(after)[len(before) :])
    else:
        raise BothChangedError(f"to change a {type(container).__name__} that the candidate changes too")


def replace_content(container: Any, value: Any) -> None:
    """Give a container the content of another of its kind, and so for the lists, dicts and sets in it, which stay the same objects."""
    if isinstance(container, tuple) and isinstance(value, tuple):
        for old, new in zip(container, value):  # noqa: B905  what a candidate says may be longer
            replace_content(old, new)
    elif isinstance(container, list) and isinstance(value, list):
        container[:] = _kept_items(container, value)
    elif isinstance(container, bytearray) and isinstance(value, bytearray):
        container[:] = value
    elif isinstance(container, dict) and isinstance(value, dict):
        kept = {key: _kept(container.get(key), new) for key, new in value.items()}
        container.clear()
        container.update(kept)
    elif isinstance(container, set) and isinstance(value, set):
        container.clear()
        container.update(value)
    elif isinstance(container, deque) and isinstance(value, deque):
        container.clear()
        container.extend(value)


def _kept_items(olds: list[Any], news: list[Any]) -> list[Any]:
    """The items of a list, where one that was moved is the same object still, and one that was changed has the new content."""
    left = {id(old): old for old in olds if is_changeable(old)}
    chosen: dict[int, Any] = {}
    """The old object for each new one, which may be there twice."""

    def choose(new: Any, old: Any) -> None:
        chosen[id(new)] = old
        left.pop(id(old), None)

    for old, new in zip(olds, news):  # noqa: B905  one may be longer
        if id(old) in left and id(new) not in chosen and _is_alike(old, new):
            choose(new, old)
    for new in news if left and len(left) <= MOST_MOVED else ():
        if is_changeable(new) and id(new) not in chosen:
            moved = next((old for old in left.values() if _is_alike(old, new)), None)
            if moved is not None:
                choose(new, moved)
    for old, new in zip(olds, news):  # noqa: B905
        if id(old) in left and id(new) not in chosen and type(old) is type(new):
            choose(new, old)
            replace_content(old, new)
    return [chosen.get(id(new), new) for new in news]


def _is_alike(old: Any, new: Any) -> bool:
    """Whether two values have the same content, without asking any object: one that is no plain data has to be the same."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if type(old) in (list, tuple, deque, dict, OrderedDict, defaultdict):
        if len(old) != len(new) or (isinstance(old, dict) and not all(map(_is_alike, old, new))):
            return False
        return all(map(_is_alike, inside(old), inside(new)))
    return type(old) in (int, float, str, bool, bytes, bytearray) and bool(old == new)


def _kept(old: Any, new: Any) -> Any:
    """The old object with the new content where the two are of one kind, so that its other names see it too."""
    if type(old) is type(new) and is_changeable(old):
        replace_content(old, new)
        return old
    return new
