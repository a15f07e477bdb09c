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
        with open(CHECKER, "rb") as file:
            tree = ast.parse(file.read(), CHECKER)
        runpy.run_path(CHECKER, run_name="__main__")
    except (ImportError, NameError, SyntaxError) as error:
        traceback.print_exc()
        frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            own = error.filename == CHECKER
        elif isinstance(error, NameError):  # a name that has no value yet may have one with another output
            own = frames[-1] == CHECKER and not isinstance(error, UnboundLocalError) and error.name not in defined(tree)
        else:
            own = frames[-1] == CHECKER
        sys.exit(OWN_FAULT if own else 1)


def defined(tree: ast.AST) -> set[str]:
    """Return the names that a program defines somewhere."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.partition(".")[0])
    return found


if __name__ == "__main__":
    main()
