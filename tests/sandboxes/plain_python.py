"""What plain Python says of programs and their files of tests, without any sandbox: the oracle of the cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

FORKS = """
import json, os, sys
import _pytest.config, pytest
for plugin in (*_pytest.config.essential_plugins, *_pytest.config.default_plugins):
    __import__("_pytest." + plugin)
codes = []
for folder in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.path[0] = folder
        os._exit(pytest.main(["-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_solution.py"]))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with open(sys.argv[1], "w") as file:
    json.dump(codes, file)
"""


def passes_in_plain_python(cases: Iterable[tuple[str, str]]) -> list[bool]:
    """Return for each program with a file of tests whether it passes them: each in a process of its own, forked from one that has imported pytest."""
    with tempfile.TemporaryDirectory(prefix="agentrl-test-") as scratch:
        folders = []
        for number, (source, code) in enumerate(cases):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            (folder / "solution.py").write_text(source)
            (folder / "test_solution.py").write_text(code)
            folders.append(str(folder))
        codes = Path(scratch) / "codes.json"
        subprocess.run(
            [sys.executable, "-c", FORKS, str(codes), *folders],
            check=True,
            timeout=120,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        return [code == 0 for code in json.loads(codes.read_text())]
