"""Objects of Python files and modules that the user names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.errors import WorkflowError, one_line


def load_object(name: str) -> Any:
    """Return the object of `FILE_OR_MODULE:NAME`.

    Raises:
        ImportError: There is no such module.
        AttributeError: There is no such object.
        WorkflowError: The file cannot be imported.
    """
    source, _, attribute = name.rpartition(":")
    module = load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    return getattr(module, attribute)


class _AsItStands(SourceFileLoader):
    """Reads a file as it is now. What Python has compiled of it is known by its size and second alone, and may be of other lines."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("there is nothing to go by")


def load_file(path: Path) -> ModuleType:
    """Return a Python file of the user's as a module. Its own folder, unless it is a package, can be imported from.

    Raises:
        WorkflowError: It cannot be imported.
    """
    name = f"agentrl_workflow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_AsItStands(name, str(path)))
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise WorkflowError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path and not (path.parent / "__init__.py").exists():
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.origin]
        line = f"{path}:{lines[-1]}" if lines else str(path)
        raise WorkflowError(f"{line} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    return module
