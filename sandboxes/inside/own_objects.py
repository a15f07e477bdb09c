"""Objects of the tests' own classes, as a program uses them that was given one: by their public names, and nothing behind those.

The program has a stand-in, whose attributes, methods and operators are asked for here, as in `node.next.value` or `repository.save(order)`.
Objects of the library's classes are closed but for those that hold only what a test puts into them: through a module, a frame or a
connection a program would reach what the tests expect, or their process.
"""

from __future__ import annotations

import copy
import enum
import functools
import sys
import types
from collections.abc import Collection
from typing import Any

from agentrl.sandboxes.inside.changes import set_content
from agentrl.sandboxes.inside.special_methods import SPECIAL_METHODS, operators
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteFunction, RemoteObject
from agentrl.sandboxes.inside.tests_objects import DESCRIPTIVE

OPEN = {
    "_io": ("StringIO", "BytesIO", "_BufferedIOBase", "_IOBase", "_TextIOBase"),
    "argparse": ("Namespace",),
    "collections.abc": ("Collection", "Mapping", "MutableMapping", "MutableSequence", "MutableSet", "Sequence", "Set"),
    "collections": ("ChainMap", "UserDict", "UserList"),
    "enum": ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"),
    "queue": ("LifoQueue", "PriorityQueue", "Queue"),
    "random": ("Random",),
    "subprocess": ("CompletedProcess",),
    "types": ("SimpleNamespace",),
    "unittest.mock": ("CallableMixin", "MagicMixin", "MagicMock", "Mock", "NonCallableMagicMock", "NonCallableMock"),
}
"""Classes of the library whose objects a program may use, by their modules."""
BEHIND = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType)
"""What no attribute gives."""


class OwnObjects:
    """Which objects are open, and what they answer. `modules` are those of the tests' code."""

    def __init__(self, modules: Collection[str]) -> None:
        self._modules = {*modules}

    def is_own_class(self, kind: type) -> bool:
        """Return whether the tests' code defines a class, which is none of tests."""
        unittest = sys.modules.get("unittest")
        return _module(kind) in self._modules and not (unittest is not None and issubclass(kind, unittest.TestCase))

    def is_open(self, value: Any) -> bool:
        """Return whether a program may use the attributes of an object, or of a class.

        Of a class of the library's it may not, which makes objects that are equal to everything.
        """
        if isinstance(value, type):
            return self.is_own_class(value) and not self.makes_mocks(value)
        return self._is_open_class(type(value))

    def makes_mocks(self, maker: Any) -> bool:
        """Return whether calling this makes a mock."""
        while type(maker) is functools.partial:
            maker = maker.func
        mock = sys.modules.get("unittest.mock")
        return mock is not None and isinstance(maker, type) and issubclass(maker, mock.NonCallableMock)

    def _is_open_class(self, kind: type) -> bool:
        return self.is_own_class(kind) or kind.__name__ in OPEN.get(_module(kind), ())

    def operators(self, kind: type) -> list[str]:
        """Return the operators that objects of a class have."""
        found = operators(kind, but=object)
        return sorted(name for name in found if found[name] is not None)

    def answer(self, value: Any, what: str, name: str, args: list[Any]) -> Any:
        """Do with an object what the program does with its stand-in.

        Raises:
            AttributeError: What it may not have.
        """
        if what == "special":
            if name not in SPECIAL_METHODS:
                raise AttributeError(name)
            owner = value if is_mock(value) else type(value)
            return getattr(owner, name)(*([] if owner is value else [value]), *args)
        if what in ("copy", "deepcopy"):
            return copy.copy(value) if what == "copy" else copy.deepcopy(value)
        if name in DESCRIPTIVE and what == "get" and type(described := getattr(value, name, None)) is str:
            return described
        if name == "__dict__" and what == "get":
            return {key: found for key, found in vars(value).items() if _is_public(value, key)}
        allowed = {"set": lambda: self._may_set(value, name, args[0]), "del": lambda: self._may_delete(value, name)}
        if not _is_public(value, name) or not allowed.get(what, lambda: self._has(value, name))():
            raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
        if what == "set":
            return setattr(value, name, args[0])
        if what == "del":
            return delattr(value, name)
        found = getattr(value, name)
        if isinstance(found, BEHIND):
            raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
        if what == "replace":
            return set_content(found, args[0])
        return found

    def _has(self, value: Any, name: str) -> bool:
        """Return whether an object has a name of its own, and not of a class that is closed."""
        kind = value if isinstance(value, type) else type(value)
        if name in getattr(value, "__dict__", {}):
            return True
        bases = [base for base in kind.__mro__ if self._is_open_class(base)]
        return any(name in vars(base) or "__getattr__" in vars(base) for base in bases)

    def _may_set(self, value: Any, name: str, new: Any) -> bool:
        """Return whether a program may set an attribute: never where the test calls something by that name, which would then be the program's."""
        if is_mock(value):
            return not _is_candidates(new)
        kind = value if isinstance(value, type) else type(value)
        by_class = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        known = by_class is not None or any(name in getattr(base, "__annotations__", ()) for base in kind.__mro__)
        if isinstance(value, type):
            return not known  # a class's own names decide what its objects are equal to
        if issubclass(kind, enum.Enum) or (known and name.isupper()):
            return False
        return not _is_called(by_class) and not _is_called(getattr(value, "__dict__", {}).get(name))

    def _may_delete(self, value: Any, name: str) -> bool:
        own = getattr(value, "__dict__", {})
        return name in own and not is_mock(value) and not _is_called(own[name])


def _is_called(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod)


def _is_candidates(value: Any) -> bool:
    """Return whether a value is an object or a function of the program's, answers for names as one does, or holds one."""
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return True
    if isinstance(value, list | tuple | set | frozenset) and type(type(value)) is type:
        return any(map(_is_candidates, value))
    if type(value) is dict:
        return any(map(_is_candidates, [*value, *value.values()]))
    return isinstance(value, RemoteFunction | RemoteObject | RemoteClass | BaseException)


def _is_public(value: Any, name: str) -> bool:
    """Return whether a program may know of a name: it is neither private, nor what a mock itself has, by which a test looks at what was done."""
    return not name.startswith("_") and not (is_mock(value) and name in _names_of_mock())


def _module(kind: type) -> str:
    return str(getattr(kind, "__module__", ""))


def is_mock(value: Any) -> bool:
    """Whether a value is a mock of `unittest.mock`."""
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


def _names_of_mock() -> set[str]:
    return {"method_calls", *dir(sys.modules["unittest.mock"].MagicMock)}
