"""Values like a test's that are other ones: to compare with, and to make objects of.

A decoy has the look of the value: its type, its number of digits, decimals, letters and items. Otherwise who is asked could tell which
value is the test's.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
FEW = 30
"""Small numbers are as likely as those of this size."""
PLAIN_FLOATS = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 10.0)


class Decoys:
    """Values that nobody can foresee."""

    def __init__(self) -> None:
        self.random = random.SystemRandom()

    def word(self) -> str:
        """Return a word that nobody knows."""
        return "".join(self.random.choices(LETTERS, k=self.random.randrange(3, 9)))

    def other(self, value: Any) -> Any:
        """Another value of the same kind; the same where there is none."""
        return value if (decoy := self.decoy(value)) is None else decoy

    def decoy(self, value: Any) -> Any:
        """Return a value of the same kind that is another one; None where there is none to make."""
        for _ in range(10):
            made = self._made(value)
            if made is None or not _same(made, value):
                return made
        return None

    def _made(self, value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self._int(value)
        if isinstance(value, float):
            return self._float(value)
        if isinstance(value, str):
            return self._text(value)
        if type(value) in (bytes, bytearray):
            return type(value)(self._text(value.decode("latin-1")).encode("latin-1"))
        if isinstance(value, complex):
            return complex(self._float(value.real), value.imag)
        if isinstance(value, list | tuple):
            items = self._items(list(value))
            return type(value)(items) if type(value) in (list, tuple) else None
        if type(value) is deque:
            return deque(self._items([*value]), value.maxlen)
        if type(value) in (dict, Counter, OrderedDict, defaultdict):
            made = copy.copy(value)
            made.clear()
            made.update(self._dict(value))
            return made
        if type(value) is range:
            return range(value.start, value.stop + self.random.choice((-2, -1, 1, 2, 3)) * value.step, value.step)
        if isinstance(value, set | frozenset):
            return type(value)(self._items(list(value)))
        return self._of_the_library(value)

    def _int(self, value: int) -> int:
        if abs(value) < FEW:
            return self.random.randrange(-2 if value >= 0 else -FEW, FEW if value >= 0 else 3)
        digits = len(str(abs(value)))
        return (1 if value > 0 else -1) * self.random.randrange(10 ** (digits - 1), 10**digits)

    def _float(self, value: float) -> float:
        text = repr(abs(value))
        if value == 0 or not text.replace(".", "").isdigit():
            return self.random.choice(PLAIN_FLOATS) * (1 if value == 0 or abs(value) in (float("inf"), value) else -1)
        whole, _, decimals = text.partition(".")
        last = "" if decimals == "0" else self.random.choice("123456789")
        made = float(f"{abs(self._int(int(whole)))}.{''.join(self.random.choices(DIGITS, k=len(decimals) - 1))}{last}")
        return made if value > 0 else -made

    def _text(self, value: str) -> str:
        if not value:
            return self.word()[: self.random.randrange(1, 6)]
        letters = [*value]
        places = [place for place, letter in enumerate(letters) if letter.isalnum()] or [*range(len(letters))]
        for place in self.random.sample(places, min(len(places), self.random.choice((1, 1, 2)))):
            old = letters[place]
            alphabet = DIGITS if old.isdigit() else LETTERS.upper() if old.isupper() else LETTERS
            letters[place] = self.random.choice([letter for letter in alphabet if letter.lower() != old.lower()])
        return "".join(letters)

    def _items(self, items: list[Any]) -> list[Any]:
        """Return as many items, of which some are others; one more where there are none, or no others."""
        if not items:
            return [self.random.choice((self._int(1), self.word(), self._float(0.5), None))]
        changed = [self.other(item) if self.random.random() < 2 / 3 else item for item in items]
        return changed if not _same(changed, items) else [*items, self.other(self.random.choice(items))]

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        if not value:
            return {self.word(): self.random.choice((self._int(1), self.word()))}
        changed = {key: self.other(item) for key, item in value.items()}
        return changed if not _same(changed, value) else {self.other(key): item for key, item in value.items()}

    def _of_the_library(self, value: Any) -> Any:
        datetime = sys.modules.get("datetime")
        if datetime is not None and type(value) in (datetime.date, datetime.datetime, datetime.timedelta):
            unit = "seconds" if getattr(value, "second", None) or getattr(value, "seconds", None) else "days"
            if self.random.random() < 1 / 3:
                unit = "weeks"
            count = self.random.choice((-1, 1)) * self.random.randrange(1, 40) * (30 if unit == "weeks" else 1)
            try:
                return value + datetime.timedelta(**{unit: count})
            except OverflowError:
                return None
        if datetime is not None and type(value) is datetime.time:
            return value.replace(hour=self.random.randrange(24), minute=self.random.randrange(60))
        uuid = sys.modules.get("uuid")
        if uuid is not None and type(value) is uuid.UUID:
            return uuid.UUID(int=self.random.randrange(1 << 128), version=4)
        pathlib = sys.modules.get("pathlib")
        if pathlib is not None and isinstance(value, pathlib.PurePath):
            return type(value)(*value.parts[:-1], self._text(value.name))
        enum = sys.modules.get("enum")
        if enum is not None and isinstance(value, enum.Enum):
            return self.random.choice([*type(value).__members__.values()])
        decimal = sys.modules.get("decimal")
        if decimal is not None and type(value) is decimal.Decimal and value.is_finite():
            sign, digits, exponent = value.as_tuple()
            changed = [self.random.randrange(10) for _ in digits]
            return decimal.Decimal((sign, (self.random.randrange(1, 10), *changed[1:]), exponent))
        fractions = sys.modules.get("fractions")
        if fractions is not None and type(value) is fractions.Fraction:
            return fractions.Fraction(self._int(value.numerator), abs(self._int(value.denominator)) or 1)
        return None


def _same(one: Any, other: Any) -> bool:
    return bool(type(one) is type(other) and one == other)
