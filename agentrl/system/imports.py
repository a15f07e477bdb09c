"""Imports: files and modules that the user names, packages that an extra brings, and packages that are loaded late or in part.

    import transformers' tokenizers ─► import torch ─► a stand-in ─► (something of it is asked for) ─► torch itself

transformers imports torch beside its tokenizers and configurations, which compute nothing with it. In a process that only talks
about tokens that is two fifths of the start and three fifths of the memory: 1.4 of 3.2 s and 180 of 310 MB, measured on 2026-11-25.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.errors import ConfigError, WorkflowError, one_line

PACKAGES = {"train": "torch transformers safetensors numpy", "lora": "peft", "url": "fsspec", "cluster": "ray"}
PACKAGES |= {"data": "datasets"}
PACKAGES |= {name: name for name in ("tensorboard", "wandb", "mlflow", "trackio", "mcp", "openenv")}
"""An extra of pyproject.toml -> the packages that are imported of it."""
_IMPORTING = threading.RLock()
"""Held within `imported_later` and `module_alone`: another thread would find modules that are half there."""
FILE_PREFIX = "agentrl_workflow_"
"""What the name of a module begins with that is a file of the user's."""


def check_extra(extra: str, needed_by: str) -> None:
    """Check that the packages of an extra can be imported.

    Args:
        extra: A key of `PACKAGES`.
        needed_by: What cannot be done without them.

    Raises:
        ConfigError: One is missing. The message says how to install it.
    """
    for package in PACKAGES[extra].split():
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{needed_by} needs {package}: pip install -e '/path/to/agentrl[{extra}]'")


def load_object(name: str) -> Any:
    """Return the object of `FILE_OR_MODULE:NAME`.

    Raises:
        ImportError: There is no such module.
        AttributeError: There is no such object.
        WorkflowError: The file cannot be imported.
    """
    source, _, attribute = name.rpartition(":")
    module = load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    if not hasattr(module, attribute):
        raise AttributeError(f"{source} has no attribute {attribute!r}")
    return getattr(module, attribute)


def import_from(folder: Path) -> None:
    """Let modules in a folder be imported, unless it is a package."""
    name = str(folder.resolve())
    if name not in sys.path and not (folder / "__init__.py").exists():
        sys.path.append(name)


def load_file(path: Path) -> ModuleType:
    """Return a Python file of the user's as a module. Its own folder, unless it is a package, can be imported from.

    Raises:
        WorkflowError: It cannot be imported.
    """
    name = f"{FILE_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if path.suffix != ".py" or spec is None:
        raise WorkflowError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    import_from(path.parent)
    try:
        # What Python has compiled of a file before is known by its size and second alone, and may be of other lines.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = f"{path}:{lines[-1]}" if lines else str(path)
        raise WorkflowError(f"{line} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    return module


class _StandIn(ModuleType):
    """Stands for a package in the modules that imported it within `imported_later`."""

    def __getattr__(self, attribute: str) -> Any:
        """Load the package, give it to the modules that hold this, and return what it has of that name."""
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        package = importlib.import_module(name)
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            if names.get(name) is self:
                names[name] = package
        return getattr(package, attribute)


@contextmanager
def imported_later(name: str) -> Iterator[None]:
    """Leave a package, where it is imported within the context, to be loaded when something of it is first used.

    An import after the context gets the package itself, as ever. Where it is loaded already, or not installed, nothing is different.

    Args:
        name: The package's, without a dot.
    """
    with _IMPORTING:
        yield from _imported_later(name)


def _imported_later(name: str) -> Iterator[None]:
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None:
        yield
        return
    stand_in = _StandIn(name)
    # Who looks through the modules, as `inspect` does, uses nothing of the package.
    stand_in.__spec__, stand_in.__loader__, stand_in.__file__ = spec, spec.loader, spec.origin
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


def module_alone(name: str) -> ModuleType:
    """Return a module of a package of which nothing else is loaded but what the module itself imports.

    Nothing of the package is known afterwards: who imports it gets it whole, with modules of its own. Where it is loaded already, the module
    is that of it.

    Args:
        name: The module's, with all packages above it.

    Raises:
        ImportError: There is no such module.
    """
    with _IMPORTING:  # and so once, however many threads ask
        return _module_alone(name)


@cache
def _module_alone(name: str) -> ModuleType:
    top = name.partition(".")[0]
    if top in sys.modules:
        return importlib.import_module(name)
    try:
        for dot in re.finditer(r"\.", name):
            package = name[: dot.start()]
            if spec := importlib.util.find_spec(package):
                sys.modules[package] = importlib.util.module_from_spec(spec)  # which does not run it
        return importlib.import_module(name)
    finally:
        for loaded in [known for known in list(sys.modules) if known == top or known.startswith(f"{top}.")]:
            del sys.modules[loaded]
