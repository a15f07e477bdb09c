"""The special methods of a candidate's classes that its stand-ins have: those of operators and of Python's own functions."""

from __future__ import annotations

import types
from typing import Any

_ASKED = "eq ne lt le gt ge hash bool len contains iter next reversed getitem setitem delitem missing length_hint call"
_COMBINED = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift"
_CONVERTED = "neg pos abs invert int float complex index round trunc floor ceil str repr format bytes enter exit"
SPECIAL_METHODS = frozenset(
    f"__{name}__"
    for name in (
        *f"{_ASKED} {_CONVERTED}".split(),
        *(side + name for side in ("", "r", "i") for name in _COMBINED.split()),
    )
)
_DESCRIPTIVE = "slots members wrapped match_args dataclass_fields dataclass_params post_init version author notes"
_PYTHONS_OWN = SPECIAL_METHODS.union(
    (f"__{name}__" for name in _DESCRIPTIVE.split()),
    *map(dir, (type, BaseException, types.FunctionType, types.MethodType, types.ModuleType, types.GenericAlias)),
)


OF_MODULES = frozenset(
    f"__{name}__"
    for name in [
        "version",
        "author",
        "email",
        "license",
        "copyright",
        "credits",
        "status",
        "maintainer",
        "date",
        "title",
        "summary",
        "url",
        "description",
    ]
)
"""What a program says of itself."""
WITH = ("__enter__", "__exit__")
COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
PASSIVE = (*COMPARISONS, "__hash__")
"""Operators that change nothing."""
OF_FRAMEWORKS = frozenset({"_pytest.outcomes", "unittest.case", "agentrl.sandboxes.inside.wire"})
"""Where exceptions that are no Exception are defined that end a test."""


def may_be_asked(name: str) -> bool:
    """Return whether a stand-in has this attribute of its original.

    A name like numpy's `__array_function__` or `__array_interface__` it has not: by those, a library hands what it should decide itself
    to the object.
    """
    return not (name.startswith("__") and name.endswith("__")) or name in _PYTHONS_OWN


def is_told(name: str) -> bool:
    """Return whether the tests have a name of the module's. By others with underscores, such as `__path__`, Python would import from it."""
    return not name[:2] == name[-2:] == "__" or name in OF_MODULES


def operators(kind: type, *, but: type) -> dict[str, Any]:
    """Return what a class and its bases have for each operator, where it is not what `but` has.

    (`getattr` would find the operators of its metaclass too, and make something of those of a mock.)
    """
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found.update({name: value for name, value in vars(base).items() if name in SPECIAL_METHODS})
    given = {name: getattr(but, name, None) for name in found}
    return {name: value for name, value in found.items() if value is not given[name]}


def goes_through_candidates(kind: type[BaseException]) -> bool:
    """Return whether an exception of test code's goes through the candidate's, which may catch it."""
    return issubclass(kind, Exception) or OF_FRAMEWORKS.isdisjoint(base.__module__ for base in kind.__mro__)
