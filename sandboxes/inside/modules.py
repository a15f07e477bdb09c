"""Makes the modules of this package importable in a sandbox, where agentrl is not installed; as a program, starts the sandbox.

    python3 -I -c SOURCE CONFIG MODULES

The last argument holds the sources of all, packed by `start_arguments`.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import types
import zlib
from importlib.machinery import ModuleSpec
from typing import Any

PACKAGES = ("agentrl", "agentrl.sandboxes", "agentrl.sandboxes.inside")


class Library:
    """Finds the modules, as an entry of `sys.meta_path`."""

    def __init__(self, packed: str) -> None:
        sources = json.loads(zlib.decompress(base64.b64decode(packed)))
        # Compiled here for all programs that are forked later.
        self._code = {name: compile(text, f"<{name}>", "exec", dont_inherit=True) for name, text in sources.items()}
        self._pythons_own = frozenset(sys.modules)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Answer Python's import, which asks for a module's spec."""
        if name in self._code or name in PACKAGES:
            return ModuleSpec(name, self, is_package=name in PACKAGES)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return an ordinary module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module's code."""
        if module.__name__ in self._code:
            exec(self._code[module.__name__], module.__dict__)

    def forget_modules_of(self, folder: str) -> None:
        """Let a program import the modules that lie beside it in `folder`.

        This process may have imported others of their names, which a Python that was started afresh would not have.
        """
        beside = {entry.partition(".")[0] for entry in os.listdir(folder)} - self._pythons_own
        for name in [name for name in sys.modules if name.partition(".")[0] in beside]:
            del sys.modules[name]


if __name__ == "__main__":
    library = Library(sys.argv[2])
    sys.meta_path.insert(0, library)
    from agentrl.sandboxes.inside.first_process import main

    main(library)
