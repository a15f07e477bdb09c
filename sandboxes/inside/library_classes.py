"""Classes of the standard library that are the same for the candidate and for the tests: exceptions, and interfaces that a class may have."""

from __future__ import annotations

import abc
import collections.abc
import importlib
from typing import Any

LIBRARY_EXCEPTIONS = {
    "_queue": ("Empty",),
    "queue": ("Empty", "Full"),
    "json.decoder": ("JSONDecodeError",),
    "dataclasses": ("FrozenInstanceError",),
    "decimal": ("InvalidOperation", "DivisionByZero", "Inexact", "Overflow", "Underflow"),
    "copy": ("Error",),
    "binascii": ("Error",),
    "struct": ("error",),
    "zlib": ("error",),
    "re": ("error",),
    "csv": ("Error",),
    "configparser": ("NoSectionError", "NoOptionError", "DuplicateSectionError", "ParsingError"),
    "subprocess": ("TimeoutExpired", "CalledProcessError"),
    "concurrent.futures._base": ("CancelledError", "InvalidStateError"),
}
"""Exceptions of the standard library that are the same class on both sides."""


def library_exception(info: Any) -> Any:
    """The class that a candidate's description of a class means; None where it means none of these."""
    if info["name"] in LIBRARY_EXCEPTIONS.get(info["module"], ()):
        return getattr(importlib.import_module(info["module"]), info["name"])
    return None


def library_interface(info: Any) -> Any:
    """The abstract class that a candidate's description of a class means: `isinstance` with it is true of what derives from it. None
    where it means none."""
    home = {"abc": abc, "collections.abc": collections.abc}.get(info["module"])
    found = getattr(home, info["name"], None)
    return found if isinstance(found, abc.ABCMeta) else None
