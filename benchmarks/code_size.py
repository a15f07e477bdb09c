"""How much code the product is, by folder, at one commit or several: lines without blanks, comments and docstrings.

python benchmarks/code_size.py [COMMIT ...]        HEAD without any
"""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import sys
import tokenize
from collections import defaultdict

ROOMS = ("agentrl", "envs", "recipes", "sandboxes", "trainer", "workflows")
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Return the lines of a module that hold code. A string that stands alone, after a field or at the top, is none."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def product(commit: str) -> dict[str, str]:
    """Return the sources of the product's modules at a commit, by path."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", commit], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = [name for name in listed if name.split("/")[0] in ROOMS and name.endswith(".py")]
    show = lambda name: subprocess.run(["git", "show", f"{commit}:{name}"], check=True, capture_output=True).stdout  # noqa: E731
    return {name: show(name).decode() for name in names}


def main() -> None:
    """Print a table for each commit."""
    for commit in sys.argv[1:] or ["HEAD"]:
        sources = product(commit)
        by_room: dict[str, list[int]] = defaultdict(list)
        for name, source in sources.items():
            room = "/".join(name.split("/")[: 2 if name.startswith("agentrl/") and name.count("/") > 1 else 1])
            by_room[room].append(code_lines(source))
        print(f"{commit}: {'folder':28} {'files':>6} {'code lines':>11}")
        for room, counts in sorted(by_room.items()):
            print(f"{'':{len(commit) + 2}}{room:28} {len(counts):6} {sum(counts):11,}")
        lengths = [len(source.splitlines()) for source in sources.values()]
        total = sum(map(sum, by_room.values()))
        print(
            f"{'':{len(commit) + 2}}{'all':28} {len(sources):6} {total:11,}   of {sum(lengths):,} lines; a file has "
            f"{statistics.median(lengths):g} (median), at most {max(lengths)}\n"
        )


if __name__ == "__main__":
    main()
