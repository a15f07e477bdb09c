"""Python code as a syntax tree, where it is Python."""

from __future__ import annotations

import ast
import warnings


def parsed(code: str) -> ast.Module | None:
    """Return the syntax tree of `code`; None where Python cannot parse it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
