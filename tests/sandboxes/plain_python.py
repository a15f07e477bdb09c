"""What plain Python says of programs and their files of tests, without any sandbox: the oracle of the cases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
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
        process = subprocess.Popen(
            [sys.executable, "-c", FORKS, str(codes), *folders],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            process_group=0,
        )
        try:
            assert process.wait(timeout=120) == 0
        finally:
            with suppress(ProcessLookupError):  # a program that hangs is a process of its own
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return [code == 0 for code in json.loads(codes.read_text())]
