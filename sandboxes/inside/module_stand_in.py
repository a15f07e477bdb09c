"""The candidate's module as `import solution` gives it to the tests."""

from __future__ import annotations

import types
from collections.abc import Iterator, MutableMapping
from typing import Any

from agentrl.sandboxes.inside.names import free_names
from agentrl.sandboxes.inside.remote import Remote
from agentrl.sandboxes.inside.special_methods import is_told


class ModuleNames(MutableMapping[str, Any]):
    """The names of the candidate's module as its `__dict__` has them: each is looked up when it is asked for."""

    def __init__(self, remote: Remote, module: types.ModuleType) -> None:
        self._remote = remote
        self._module = module

    def __getitem__(self, name: str) -> Any:
        if name in self._remote.kinds:
            return self._remote.stand_in(name)
        own: dict[str, Any] = OWN_NAMES.__get__(self._module)
        return own[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self._remote.kinds:
            raise KeyError(name)
        self._remote.delete_name(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*OF_EVERY_MODULE, *self._remote.kinds])

    def __len__(self) -> int:
        return len(OF_EVERY_MODULE) + len(self._remote.kinds)


OWN_NAMES: Any = vars(types.ModuleType)["__dict__"]
"""Gives what a module itself has for its names."""
OF_EVERY_MODULE = ("__name__", "__doc__", "__package__", "__loader__", "__spec__")


class RemoteModule(types.ModuleType):
    """The candidate's module as `import solution` gives it. Nothing is kept here of what a test sets in it: the program may set the same."""

    def __init__(self, remote: Remote, name: str) -> None:
        super().__init__(name, remote.doc)
        object.__setattr__(self, "_agentrl", remote)

    def __getattr__(self, name: str) -> Any:
        remote: Remote = object.__getattribute__(self, "_agentrl")
        if name not in remote.kinds:
            if not name.startswith("__"):
                remote.wire.note_missing()
            raise AttributeError(f"the candidate's module has no {name!r}")
        return remote.stand_in(name)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        """The names as `mock.patch` looks for them: it puts back what it finds here."""
        return ModuleNames(object.__getattribute__(self, "_agentrl"), self)

    def __dir__(self) -> list[str]:
        remote: Remote = object.__getattribute__(self, "_agentrl")
        return sorted({*OF_EVERY_MODULE, *remote.kinds})

    def __setattr__(self, name: str, value: Any) -> None:
        if is_told(name):
            remote: Remote = object.__getattribute__(self, "_agentrl")
            remote.set_name(name, value)

    def __delattr__(self, name: str) -> None:
        remote: Remote = object.__getattribute__(self, "_agentrl")
        remote.delete_name(name)


def module_stand_in(remote: Remote, job: dict[str, Any]) -> types.ModuleType:
    """Return what `import solution` gives.

    `from solution import *` gives only what the tests cannot have from anywhere else, so that no candidate puts its own `len` or
    `unittest` under them.
    """
    module = RemoteModule(remote, job["module"])
    names = sorted(free_names(job["code"], module=job["module"]) & remote.kinds.keys())
    types.ModuleType.__setattr__(module, "__all__", names)
    return module
