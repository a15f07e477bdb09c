"""The special methods of a candidate's classes that its stand-ins have: those of operators and of Python's own functions."""

from __future__ import annotations

_ASKED = "eq ne lt le gt ge hash bool len contains iter next reversed getitem setitem delitem missing length_hint call"
_COMBINED = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift"
_CONVERTED = "neg pos abs invert int float complex index round trunc floor ceil str repr format bytes enter exit"
SPECIAL_METHODS = frozenset(
    f"__{name}__"
    for name in (
        *f"{_ASKED} {_CONVERTED}".split(),
        *(side + name for side in ("", "r", "i") for name in _COMBINED.split()),
    )
)
