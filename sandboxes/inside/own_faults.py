"""Which errors of test code are its own: nothing that a candidate did made them, and no candidate could pass the test.

What the candidate can have any part in is none of them, or it could choose to be ungradable and not wrong: an error that it raises, a name
that its module lacks, a file beside the tests that may have asked it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, TracebackType

OWN_CODE = ("<tests>", "<prelude>", "test_solution.py")
"""File names of test code that lies in no file."""
OURS = "<agentrl."


def own_fault(error: BaseException, module: str, files: Iterable[str], folders: Iterable[str]) -> str | None:
    """Return what the tests need and do not have, if that is why they failed.

    Args:
        error: How they failed.
        module: The name of the candidate's module.
        files: The paths of files beside the tests.
        folders: Where the tests' code and these files lie.
    """
    fixtures, nodes = sys.modules.get("_pytest.fixtures"), sys.modules.get("_pytest.nodes")
    if fixtures is not None and isinstance(error, fixtures.FixtureLookupError):
        return f"the tests need the fixture {error.argname!r}, which nobody defines"
    if nodes is not None and isinstance(error, nodes.Collector.CollectError) and error.__cause__ is not None:
        error = error.__cause__
    # Others may have been made by the candidate: one that recurses through a function of the tests, say.
    if not isinstance(error, ImportError) or (statement := _statement_that_raised(error, tuple(folders))) is None:
        return None
    name = _imported_at(*statement)
    if name is None:
        return None
    said = str(error)[:500]
    if "attempted relative import" in str(error):
        return f"the tests import the module {name!r} from a package, and are in none ({said})"
    if name.partition(".")[0] in {module, *(path.partition("/")[0].partition(".")[0] for path in files)}:
        return None
    return (
        f"the tests need the module {name!r}, which is neither the candidate's ({module!r}), nor beside them, nor works in the "
        f"sandbox ({said})"
    )


def _statement_that_raised(error: BaseException, folders: tuple[str, ...]) -> tuple[CodeType, int] | None:
    """Return the place in the tests' own code that an error comes from; None where the candidate was asked after it."""
    found: tuple[CodeType, int] | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in OWN_CODE or code.co_filename.startswith(folders):
            found = code, trace.tb_lasti
        elif code.co_filename.startswith(OURS):
            found = None
        trace = trace.tb_next
    return found


def _imported_at(code: CodeType, offset: int) -> str | None:
    """Return the module that the statement at an offset imports; None where it is no import."""
    import dis

    name = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            name = str(instruction.argval)
        if instruction.offset == offset:
            return name if instruction.opname in ("IMPORT_NAME", "IMPORT_FROM") else None
    return None
