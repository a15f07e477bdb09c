"""What of the standard library is the same for the candidate and for the tests.

Exceptions, interfaces that a class may have, and functions and classes that are known by name, of which each side uses its own.
"""

from __future__ import annotations

import abc
import collections.abc
import importlib
import re
import sys
import types
from contextlib import suppress
from typing import Any

_IMPORTED = {
    *(
        "_pickle",
        "_queue",
        "argparse",
        "binascii",
        "configparser",
        "copy",
        "csv",
        "dataclasses",
        "decimal",
        "getopt",
        "graphlib",
    ),
    *(
        "ipaddress",
        "json.decoder",
        "queue",
        "re",
        "shutil",
        "smtplib",
        "socket",
        "sqlite3",
        "ssl",
        "statistics",
        "struct",
    ),
    *("subprocess", "tarfile", "threading", "tomllib", "zipfile", "zlib", "asyncio.exceptions", "asyncio.queues"),
    *(
        "concurrent.futures._base",
        "email.errors",
        "http.client",
        "urllib.error",
        "xml.etree.ElementTree",
        "zoneinfo._common",
    ),
}
"""Modules that are imported for the exceptions that a candidate derives its own from, which may be before the tests import them."""
_OF_RUNNERS = ("bdb", "doctest", "pdb", "unittest")
"""Modules whose exceptions tell what runs tests what to do: they are nothing of a candidate's to raise."""


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_WITHOUT_VALUE = (property, staticmethod, classmethod, map, filter, zip, enumerate, reversed, range, memoryview, super)
_PYTHONS_OWN = {
    **{kind.__name__: kind for kind in _WITHOUT_VALUE},
    "generator": types.GeneratorType,
    "coroutine": types.CoroutineType,
    "async_generator": types.AsyncGeneratorType,
    "cell": types.CellType,
    "mappingproxy": types.MappingProxyType,
}


def pythons_own(info: Any) -> type | None:
    """Return the class of Python's own that a description of a class means, where its objects are no plain data: `isinstance` says so of their stand-ins.

    None for any other.
    """
    named = {("re", "Pattern"): re.Pattern, ("types", "SimpleNamespace"): types.SimpleNamespace}
    if (found := named.get((info.get("module"), info["name"]))) is not None:
        return found
    return _PYTHONS_OWN.get(info["name"]) if info.get("module") == "builtins" else None


def library_exception(info: Any, *, load: bool = False) -> Any:
    """Return the exception class of the standard library that a description of a class means; None where it means none.

    Args:
        info: The "name" and "module" of the class.
        load: Whether to import whatever module it is in. Else only some are imported, and of others what is loaded already is known: what
            a candidate describes is to import nothing that does more than that, and a test that names a class has imported it.
    """
    name, module = str(info["name"]), str(info["module"])
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names or top in _OF_RUNNERS:
        return None
    if load or module in _IMPORTED:
        with suppress(ImportError):
            importlib.import_module(module)
    home = sys.modules.get(module)
    found = vars(home).get(name) if type(home) is types.ModuleType else None
    return (
        found if isinstance(found, type) and issubclass(found, BaseException) and found.__module__ == module else None
    )


def fields_of_exception(kind: type) -> set[str]:
    """Return what Python's own exceptions hold that is in no `__dict__`, such as `errno` and `filename`.

    The object that has no attribute is left out: nobody keeps it.
    """
    own = [vars(base) for base in kind.__mro__ if base.__module__ == "builtins"]
    found = {name for names in own for name, field in names.items() if isinstance(field, _FIELDS)}
    return {name for name in found if not name.startswith("_")} - {"args", "obj"}


def library_interface(info: Any) -> Any:
    """Return the abstract class that a candidate's description of a class means: `isinstance` with it is true of what derives from it.

    None where it means none.
    """
    home = {"abc": abc, "collections.abc": collections.abc}.get(info["module"])
    found = getattr(home, info["name"], None)
    return found if isinstance(found, abc.ABCMeta) else None


def library_name(value: Any) -> str | None:
    """Return the name by which a function or class of the standard library is found, or a module or stream of it, as in "operator:add".

    None for anything else.

    A method that is bound to an object has none: it may be the one that a test has seeded.
    """
    if value is sys.stdout or value is sys.stderr:
        return "sys:stdout" if value is sys.stdout else "sys:stderr"
    if isinstance(value, types.ModuleType):
        name = value.__name__
        standard = name.partition(".")[0] in sys.stdlib_module_names and sys.modules.get(name) is value
        return f"{name}:" if standard else None
    bound = not isinstance(getattr(value, "__self__", None), types.ModuleType | None)
    if bound or not isinstance(value, _NAMED):
        return None
    home = getattr(getattr(value, "__objclass__", value), "__module__", None)
    if str(home).partition(".")[0] not in sys.stdlib_module_names or (
        isinstance(value, type) and issubclass(value, BaseException)
    ):
        return None
    name = f"{home}:{value.__qualname__}"
    return name if _found(name) is value else None


def library_value(name: str) -> Any:
    """Return what `library_name` names."""
    importlib.import_module(name.partition(":")[0])
    return _found(name)


def _found(name: str) -> Any:
    home, _, path = name.partition(":")
    found: Any = sys.modules.get(home)
    for part in path.split(".") if path else ():
        found = getattr(found, part, None)
    return found
