"""Runs test files, of unittest too, by pytest, and reports each of their tests."""

from __future__ import annotations

import importlib
import os
import re
import sys
import unittest
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from agentrl.sandboxes.inside.report import Report

FILE = "test_solution"
"""The test file, without its ending; it lies in the working directory."""
WITHOUT = ("cacheprovider", "doctest", "faulthandler", "junitxml", "pastebin", "setuponly", "setupplan", "stepwise")
"""Plugins of pytest's that no test needs here, and that take time to start."""
NO_PLUGIN = "it needs a plugin of pytest's: name that in the test file, as in pytest_plugins = ['pytest_asyncio.plugin'], and install it beside pytest"
NO_PYTEST = "the sandbox has no pytest, which these tests need: install it in the image, or beside agentrl where that is bubblewrap's"
ANY = "*"
"""Stands for the functions of a class or a module that its own setup has skipped."""


def import_framework(kind: str, imports: list[str]) -> None:
    """Import what runs tests, and what they import, so that it is as it should be before there is a program.

    Raises:
        ImportError: There is no pytest.
    """
    names = list(imports)
    if kind != "assert":
        try:
            plugins = importlib.import_module("_pytest.config").default_plugins
        except ModuleNotFoundError:
            raise ImportError(NO_PYTEST) from None
        names += [f"_pytest.{name}" for name in plugins if name not in WITHOUT]
    for name in names:
        with suppress(ImportError):  # the tests will say so
            importlib.import_module(name)


def run_pytest(report: Report) -> None:
    """Run the test file by pytest, with no configuration but what the tests have brought."""
    for name in [name for name in os.environ if name.startswith("PYTEST")]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest
    from _pytest.outcomes import OutcomeException as Outcome

    def of_program(name: str, value: Any) -> bool:
        """Return whether the program has brought what the test file has under a name."""
        return getattr(sys.modules.get(report.job["module"]), name, report) is value

    class TestModule(pytest.Module):
        """The test file, without what `import *` has brought and its code does not name: hooks, marks and fixtures of the program's."""

        def _getobj(self) -> Any:
            made = super()._getobj()  # type: ignore[no-untyped-call]
            for name, value in [*vars(made).items()]:
                if of_program(name, value) and name[0] != "_" and not re.search(rf"\b{name}\b", report.job["code"]):
                    delattr(made, name)
            return made

    class Reporter:
        def __init__(self) -> None:
            self.error: BaseException | None = None
            self.text: str | None = None
            self.was_skipped = False

        def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> Any:
            return TestModule.from_parent(parent, path=module_path)

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makeitem(self, name: str, obj: Any) -> list[Any] | None:
            return [] if of_program(name, obj) else None

        def pytest_deselected(self, items: list[Any]) -> None:
            for item in items:
                report.skip(item.nodeid, function_of(item.nodeid), None)

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            self.error, self.text, self.was_skipped = None, None, False
            report.begin()

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
            before = call.excinfo.value if call.excinfo is not None else None
            outcome: Any = yield
            made = outcome.get_result()
            raised = call.excinfo.value if call.excinfo is not None else None
            without = isinstance(raised, Outcome) and str(raised).startswith("async def function")
            if without or type(raised).__name__ == "FixtureLookupError":
                self.error, self.text = ImportError(), f"{made.longreprtext}\n{NO_PLUGIN}"
            elif made.failed and self.error is None:
                self.error, self.text = raised or AssertionError(), str(made.longreprtext)
            elif made.skipped and (isinstance(raised, pytest.xfail.Exception) or not hasattr(made, "wasxfail")):
                self.was_skipped = True
                # In place of unittest's, pytest raises one of its own.
                causes = [before, raised and raised.__context__]
                skips = [one for one in causes if isinstance(one, unittest.SkipTest)]
                report.skip(item.nodeid, function_of(item.nodeid), raised, *skips)

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            if not self.was_skipped or self.error is not None:
                report.end(nodeid, function_of(nodeid), self.error, self.text)

        @pytest.hookimpl(hookwrapper=True)
        def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
            outcome: Any = yield
            made = outcome.get_result()
            raised: Any = made.call.excinfo.value if made.call.excinfo is not None else None
            if made.skipped:
                report.skip(collector.nodeid, ANY, raised)
            elif made.failed:
                # pytest shows an ImportError as an error of its own.
                cause = getattr(raised, "__cause__", None) or raised or RuntimeError()
                report.end(collector.nodeid, "", cause, str(made.longreprtext))

    own = [] if os.path.exists("conftest.py") else ["--noconftest"]
    folder = os.getcwd()
    without = [word for name in WITHOUT for word in ("-p", f"no:{name}")]
    options = ["-q", *without, "-c", os.devnull, "--rootdir", folder, "--confcutdir", folder, *own]
    options += ["-x"] if report.job["fail_fast"] else []
    code = pytest.main([f"{FILE}.py", *options], plugins=[Reporter()])
    if code > pytest.ExitCode.TESTS_FAILED and not report.failed and code != pytest.ExitCode.NO_TESTS_COLLECTED:
        report.end(f"{FILE}.py", "", RuntimeError(f"pytest ends with {code!r}"))


def function_of(nodeid: str) -> str:
    """Return the name of the function of a test."""
    return nodeid.partition("[")[0].rpartition("::")[2]
