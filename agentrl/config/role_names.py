"""The names that a role may have: one is part of a key (`KEY.NAME`), and the name of a folder where the role has an adapter of its own."""

from __future__ import annotations

MAX_ROLE_CHARACTERS = 64


def is_role(name: str) -> bool:
    """Return whether a role may have this name. A key is a header, which holds ASCII alone."""
    return name.isascii() and len(name) <= MAX_ROLE_CHARACTERS and name.replace("-", "_").isidentifier()
