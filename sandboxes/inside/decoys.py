"""Values like a test's that are other ones: to compare with, and to make objects of."""

from __future__ import annotations

import random
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Decoys:
    """Values that nobody can foresee."""

    def __init__(self) -> None:
        self.random = random.SystemRandom()

    def word(self) -> str:
        """A word that nobody knows."""
        return "".join(self.random.choices(LETTERS, k=8))

    def other(self, value: Any) -> Any:
        """Another value of the same kind; the same where there is none."""
        if isinstance(value, bool):
            return not value
        return value if (decoy := self.decoy(value)) is None else decoy

    def decoy(self, value: Any) -> Any:
        """A value of the same kind that is another one; None where there is none to make."""
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, int):
            size = max(abs(value), 5)
            return (
                value + self.random.choice((-1, 1)) * self.random.randrange(1, 3 * size)
                if value
                else self.random.randrange(1, 50)
            )
        if isinstance(value, float):
            return value * self.random.uniform(1.5, 3) + self.random.uniform(1, 2)
        if isinstance(value, str):
            letters = [*value] or [""]
            place = self.random.randrange(len(letters))
            letters[place] = self.random.choice(
                [c for c in LETTERS + LETTERS.upper() + "0123456789" if c.lower() != letters[place].lower()]
            )
            return "".join(letters)
        if isinstance(value, list | tuple):
            items = [item if (decoy := self.decoy(item)) is None else decoy for item in value]
            if items != list(value):
                return type(value)(items) if type(value) in (list, tuple) else None
            return [*items, 1] if type(value) is list else (*items, 1)
        if type(value) is dict:
            changed = {key: item if (decoy := self.decoy(item)) is None else decoy for key, item in value.items()}
            return changed if changed != value else {**value, self.word(): 1}
        if isinstance(value, set | frozenset):
            return type(value)([*value, self.word()])
        return None
