"""How pytest is started on a file of tests: alike beside the program and apart from it."""

from __future__ import annotations

import os


def run_file(code: str, folder: str, plugin: object) -> int:
    """Run test code as the file test_solution.py in `folder`, tell `plugin` what becomes of it, and return pytest's exit code."""
    import _pytest.runner
    import pytest

    # It would put the name of the test that runs, and with it the parameters that are expected, into the environment.
    _pytest.runner._update_current_test_var = lambda item, when: None
    path = os.path.join(folder, "test_solution.py")
    with open(path, "w") as file:
        file.write(code)
    # Without a bound it looks through every folder above this one too, for a third of its time, and imports a conftest.py there.
    above = ["--rootdir", folder, "--confcutdir", folder]
    return pytest.main([path, "-q", "-p", "no:cacheprovider", "-c", os.devnull, *above], plugins=[plugin])
