"""Which weights made which tokens of a reply that grows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from agentrl.record.soundness import Expected, fault_of_versions
from agentrl.record.tokens import VersionSpan

VERSION_DIGITS = 18
"""Digits that a version may have: as many as fit into 64 bits."""


class VersionMode(Enum):
    """The way in which the version of a token is known."""

    GIVEN = auto()
    """The request named the weights: they made all of it, whatever the server says."""
    SERVED = auto()
    """A state names the version that was served when it was sent, which may be later than when its tokens were made. So the
    version of tokens is known only while no weight update has begun since the request: what is sure ends there."""
    REPORTED = auto()
    """A state said which weights made which tokens. SGLang does so with the last state of a reply alone."""


@dataclass(frozen=True)
class VersionFault:
    """A fault in the versions of a state."""

    text: str
    restarted: bool = False
    """Whether the server computes with older weights than it was given, so that nothing in its state can be relied on."""


class VersionTracker:
    """The version of each token of a reply, as far as it is sure.

    Args:
        given: the version that the request named, if it did.
    """

    def __init__(self, given: int | None = None) -> None:
        self.mode = VersionMode.SERVED if given is None else VersionMode.GIVEN
        self._version = given
        """The version that was given, or served first."""
        self._changed = False
        """Whether another one was served later."""
        self._certain_tokens = 0
        """Tokens, from the first on, that `_version` made for sure."""
        self._reported_spans: list[VersionSpan] = []
        self._settled = self.mode, self._reported_spans

    def settle(self) -> None:
        """Trust what has been taken in so far: `drop_since_settled` goes back to here."""
        self._settled = self.mode, self._reported_spans

    def drop_since_settled(self, tokens: int) -> None:
        """Forget the states since `settle`, when the reply had so many tokens."""
        self._certain_tokens = min(self._certain_tokens, tokens)
        self.mode, self._reported_spans = self._settled

    def take(self, meta: dict[str, Any], tokens: int, expected: Expected) -> VersionFault | None:
        """Take in what a state says, with which the reply has so many tokens. Return what is wrong with it."""
        if self.mode is VersionMode.GIVEN:
            self._certain_tokens = tokens
            return None
        if "weight_versions" in meta:
            return self._take_reported(meta["weight_versions"], tokens, expected)
        return self._take_served(meta.get("weight_version", "default"), tokens, expected)

    def _take_reported(self, reported: Any, tokens: int, expected: Expected) -> VersionFault | None:
        try:
            spans = [VersionSpan(version_number(s["version"]), s["start"], s["end"]) for s in reported]
        except (TypeError, KeyError):
            return VersionFault(f"its version spans are {reported!r:.80}")
        if not tokens and [(span.start, span.end) for span in spans] == [(0, 0)]:
            spans = []  # so SGLang says of a reply that ended before its first token
        end = spans[-1].end if spans else 0
        if (fault := fault_of_versions(spans, end, expected)) is not None:
            return VersionFault(fault)
        if end > tokens:
            return VersionFault(f"its version spans cover {end} tokens, it has {tokens}")
        for span in spans:
            if (outdated := _outdated(span.version, expected)) is not None:
                return outdated
        self.mode, self._reported_spans = VersionMode.REPORTED, spans
        return None

    def _take_served(self, served: Any, tokens: int, expected: Expected) -> VersionFault | None:
        version = version_number(served)
        if version < 0 or (expected.newest_version is not None and version > expected.newest_version):
            return VersionFault(f"it serves version {served!r}, the newest is {expected.newest_version}")
        if (outdated := _outdated(version, expected)) is not None:
            return outdated
        if self._version is None:
            self._version = version
        self._changed = self._changed or version != self._version
        # No update has begun since the request, so no token of this state, however late it was sent, is of other weights.
        if version == self._version == expected.only_version:
            self._certain_tokens = tokens
        return None

    def end(self, tokens: int) -> bool:
        """Note that the reply has ended with so many tokens. False: its weights changed, and nothing says where."""
        if self.mode is VersionMode.SERVED:
            if self._changed:
                return False
            # Updates of a server that reports no spans end replies: one version made all of this one.
            self._certain_tokens = tokens
        return True

    def spans(self) -> list[VersionSpan]:
        """Return the versions of the tokens of which they are sure."""
        if self.mode is VersionMode.REPORTED:
            return self._reported_spans
        return [VersionSpan(self._version or 0, 0, self._certain_tokens)]


def _outdated(version: int, expected: Expected) -> VersionFault | None:
    if expected.oldest_version is None or version >= expected.oldest_version:
        return None
    fault = f"computes with version {version} though it was given {expected.oldest_version}: it was started again behind our back"
    return VersionFault(fault, restarted=True)


def version_number(reported: object) -> int:
    """Return the number of a version as servers report it; -1 for what cannot be one.

    SGLang calls the weights that it started with "default", and others may have names too: these are version 0.
    """
    if type(reported) is int:
        return reported
    if not isinstance(reported, str):
        return -1
    if reported.isascii() and reported.isdecimal() and len(reported) <= VERSION_DIGITS:
        return int(reported)
    return -1 if reported[:1] in ("", "-", "+", ".") or reported[:1].isdecimal() else 0
