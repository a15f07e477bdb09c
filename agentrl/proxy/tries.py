"""The tries of a session's requests: whether what a client sends again may be in the record already.

A client says that it sends a request again, and not why: the reply was lost on its way, which the record then holds, or there was none. An earlier reply to
the same words was another sample, which its client has: it is no reply to a request whose own try came to nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_UNREAD = ""
"""Stands for the requests that were refused before they were read."""
_REMEMBERED = 4096
"""Requests of which tries are remembered, at most."""


@dataclass
class Tries:
    """How many tries of each request have no reply in the record."""

    _open: Counter[str] = field(default_factory=Counter)

    def refused(self) -> None:
        """Note a try that was refused before it was read."""
        self._open[_UNREAD] += 1

    def begin(self, digest: str, *, again: bool) -> bool:
        """Note a try of a request, told by its digest; return whether the record may hold the reply to an earlier try of it.

        One that is still in work counts as one without a reply: its client has left it.
        """
        failed = next((key for key in (digest, _UNREAD) if self._open[key] > 0), None) if again else None
        if failed is not None:
            self._open[failed] -= 1
        if len(self._open) > _REMEMBERED:
            self._open.clear()
        self._open[digest] += 1
        return again and failed is None

    def recorded(self, digest: str) -> None:
        """Note that the reply to a try is in the record."""
        if self._open[digest] > 1:
            self._open[digest] -= 1
        else:
            del self._open[digest]
