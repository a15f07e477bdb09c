"""Tables for notebooks, of nothing but escaped text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a table of names and values as HTML."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def html_rows(title: str, names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with a line of names, and one line for each of `rows`, as HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"


def html_text(text: str) -> str:
    """Return text as HTML that keeps its lines."""
    return f'<pre style="white-space:pre-wrap">{escape(text)}</pre>'
