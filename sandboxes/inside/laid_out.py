"""The files that lie beside tests."""

from __future__ import annotations

import base64
import os
import sys


def lay_out(files: dict[str, str]) -> str | None:
    """Write the files beside the tests where they find them: in the folder that they run in, from which they import.

    Args:
        files: Their content in base64, by their paths.

    Returns:
        The folder; None where there are no files.
    """
    if not files:
        return None
    import tempfile

    folder = tempfile.mkdtemp()
    for path, content in files.items():
        where = os.path.join(folder, path)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "wb") as file:
            file.write(base64.b64decode(content))
    sys.path.insert(0, folder)
    os.chdir(folder)
    beside = {path.partition("/")[0].partition(".")[0] for path in files} - sys.stdlib_module_names - {"agentrl"}
    for name in [name for name in sys.modules if name.partition(".")[0] in beside]:
        del sys.modules[name]  # of a module that was imported already, the tests mean their own
    return folder
