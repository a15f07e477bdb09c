"""A class of the tests' side that no candidate knows, to compare with."""

from __future__ import annotations


class Foreign:
    """An object of a class that the candidate does not know."""
