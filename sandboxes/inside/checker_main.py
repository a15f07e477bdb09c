"""Runs a checker in Python. It would end with 1, as one that rejects, where it is wrong itself: then this ends with 3.

What the checked program has printed may lead a checker to any exception, so only those speak against the checker that it has
whatever it reads: it is no Python, it imports what is not there, it uses a name that it defines nowhere.
"""

import ast
import runpy
import sys
import traceback

CHECKER = "checker.py"
OWN_FAULT = 3


def main() -> None:
    """Run the checker."""
    try:
        runpy.run_path(CHECKER, run_name="__main__")
    except (ImportError, NameError, SyntaxError) as error:
        traceback.print_exc()
        last = [*traceback.walk_tb(error.__traceback__)][-1][0].f_code.co_filename
        own = error.filename == CHECKER if isinstance(error, SyntaxError) else last == CHECKER
        # A name that has no value yet may have one with another output.
        may_have = isinstance(error, NameError) and error.name in {None, *bound_names()}
        sys.exit(OWN_FAULT if own and not may_have else 1)


def bound_names() -> set[object]:
    """Return the names that the checker gives a value somewhere: all but those that it merely uses."""
    with open(CHECKER, "rb") as file:
        nodes = ast.walk(ast.parse(file.read()))
    others = [node for node in nodes if not isinstance(getattr(node, "ctx", None), ast.Load)]
    return {value for node in others for _, value in ast.iter_fields(node) if isinstance(value, str)}
