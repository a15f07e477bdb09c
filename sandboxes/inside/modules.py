"""Makes the modules of this package importable in a box, where agentrl is not installed; as a program, starts the box."""

from __future__ import annotations

import json
import sys
import types


def register(modules: dict[str, str]) -> None:
    """Make modules of their sources, by dotted name, in the order of their imports."""
    for dotted, source in modules.items():
        parts = dotted.split(".")
        for end in range(1, len(parts)):
            package = sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
            package.__path__ = []
        sys.modules[dotted] = module = types.ModuleType(dotted)
        exec(compile(source, f"<{dotted}>", "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    register(json.loads(sys.argv[1])["modules"])
    from agentrl.sandboxes.inside.pristine import main

    main()
