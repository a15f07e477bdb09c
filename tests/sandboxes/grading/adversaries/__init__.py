"""Programs that want a reward they have not earned, or to harm whoever comes near.

None adds, unless it has found what it was looking for. Each is asked for `add(a, b)`, the sum of two integers, and for a program that
reads two integers and prints their sum.
"""

from __future__ import annotations

from textwrap import dedent

from tests.sandboxes.grading.adversaries.general import BOMBS, ESCAPES, LEFTOVERS
from tests.sandboxes.grading.adversaries.places import PLACES
from tests.sandboxes.grading.adversaries.processes import PROCESSES
from tests.sandboxes.grading.adversaries.verdict import VERDICT

_AGAINST_THE_PLACE = (BOMBS, LEFTOVERS, ESCAPES, PROCESSES, PLACES)
"""What these do is the same whatever kind of test asks them."""


def against_the_verdict() -> dict[str, str]:
    """Programs that want to be taken for right, by what they do."""
    return {name: dedent(source) for name, source in VERDICT.items()}


def against_the_place(*, port: int, canary: str) -> dict[str, str]:
    """Programs that want more than their share, or what is not theirs. `port` is one that nobody may reach, `canary` a file that
    nobody may read."""
    sources = {name: dedent(source) for group in _AGAINST_THE_PLACE for name, source in group.items()}
    return {name: source.replace("PORT", str(port)).replace("CANARY", canary) for name, source in sources.items()}
