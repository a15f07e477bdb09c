"""One reply while a server streams it. A state is checked before anything of it is kept, so what the reply has is sound at all times and is not checked again.

    bytes ─► events ─► state ─► GrowingReply.grow ─► tokens so far, each with its logprob; versions, as far as they are sure
                                    ├─ ServerLostError    the server computes with weights that it should not have any more
                                    └─ BadReplyError      the state cannot be right; none of it is kept

Errors of a server that gave no usable answer, by whose fault it is. Each has in `partial` what came of a reply before, to be continued:

    EngineError              the server refused: it is alive, and so would the next one refuse
    ├── ServerLostError      it cannot be reached, broke off, went silent, or failed: it is taken out of service at once
    │   └── UnreachableError
    └── BadReplyError        it answered with what cannot be right: it is asked again elsewhere, and taken out when it repeats
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, get_args

import aiohttp

from agentrl.errors import EngineError
from agentrl.record.soundness import Expected, fault_of_tokens, fault_of_top, fault_of_versions, rounded
from agentrl.record.tokens import FinishReason, Generation, VersionSpan

VERSION_DIGITS = 18
"""Digits that a version may have: as many as fit into 64 bits."""


class PartialReplyError(EngineError):
    """A call failed; `partial` is what came of its reply before."""

    def __init__(self, message: str, partial: Generation | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class ServerLostError(PartialReplyError):
    """A server cannot be reached any more, or cannot go on."""


class UnreachableError(ServerLostError):
    """A connection to a server failed or broke off, which may also be the fault of the network between."""


class BadReplyError(PartialReplyError):
    """A server answered with what no sound server answers."""


async def events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the JSON of server-sent events, however long."""
    pieces: list[bytes] = []
    async for data in content.iter_any():
        if pieces and pieces[-1].endswith(b"\n"):  # the end of an event may arrive in two parts
            data = pieces.pop() + data
        *complete, rest = data.split(b"\n\n")
        for end in complete:
            event = b"".join([*pieces, end])
            pieces = []
            if event.startswith(b"data: ") and event != b"data: [DONE]":
                yield event[6:]
        pieces.append(rest)


class _FaultError(Exception):
    """A state that cannot be right."""


class _OutdatedError(_FaultError):
    """A state of older weights than the server was given: it was started again."""


@dataclass(eq=False)
class GrowingReply:
    """The sound tokens of a reply, as they come.

    There are three ways to know the version of a token. The request named the weights, as it names an adapter: these made all of the
    reply. Its last state reports which weights made which tokens. Until then a state names the version that is served when it is sent,
    which may be later than when its tokens were made: it is sure only while no weight update has begun since the request.
    """

    url: str
    """The server, for messages."""
    _: KW_ONLY
    incremental: bool
    """Whether a state holds the new tokens alone."""
    prompt_tokens: int
    """Length of what was sent."""
    expected: Callable[[], Expected]
    """The bounds of the reply. It is asked anew for every state, because weights change meanwhile."""
    stops: Sequence[str] = ()
    """The stop strings that were sent."""
    version: int | None = None
    """The weights that the request named, if it did."""
    output_ids: list[int] = field(default_factory=list)
    """[T] all tokens so far, of every version; they may be shown."""
    _logprobs: list[float] = field(default_factory=list)
    _top: list[list[tuple[float, int]]] = field(default_factory=list)
    _spans: list[VersionSpan] = field(default_factory=list)
    """The versions of the tokens, from the first on, of which they are sure."""
    _cached_tokens: int = 0
    _whole: Generation | None = None

    def grow(self, state: Any) -> None:
        """Take in the server's next state.

        Raises:
            BadReplyError: It cannot be right.
            ServerLostError: The server was started again with older weights.
            EngineError: It is a refusal.
        """
        try:
            self._take(state)
        except _OutdatedError as fault:
            raise ServerLostError(f"{self.url} {fault}", self.so_far()) from fault
        except _FaultError as fault:
            raise BadReplyError(f"{self.url} gave an unsound reply: {fault}", self.so_far()) from fault

    def _take(self, state: Any) -> None:
        expected = self.expected()
        if not isinstance(state, dict):
            raise _FaultError(f"it sent {type(state).__name__}, not an object")
        if "meta_info" not in state:
            raise EngineError(f"{self.url} gave the request up: {state.get('error', state)}")
        meta = state["meta_info"]
        if not isinstance(meta, dict):
            raise _FaultError("its meta_info is no object")
        finish = meta.get("finish_reason")
        if finish is not None:
            self._check_finish(finish)
        if (prompt_tokens := meta.get("prompt_tokens", self.prompt_tokens)) != self.prompt_tokens:
            raise EngineError(
                f"{self.url} made {prompt_tokens} tokens of a prompt of {self.prompt_tokens}: it prepares images "
                "otherwise than the model's renderer"
            )
        ids, logprobs, top = self._new_tokens(state.get("output_ids", []), meta, finish, expected)
        count = len(self.output_ids) + len(ids)
        if finish is not None:
            self._check_end(finish, (ids or self.output_ids)[-1:], count, expected)
        self._spans = self._spans_after(meta, count, expected)
        self.output_ids += ids
        self._logprobs += logprobs
        self._top += top
        cached = meta.get("cached_tokens", 0)
        self._cached_tokens = cached if type(cached) is int else 0
        if finish is not None:
            self._whole = self._generation(finish["type"])

    def _check_finish(self, finish: Any) -> None:
        if not isinstance(finish, dict) or finish.get("type") not in get_args(FinishReason):
            raise _FaultError(f"it ended with {finish!r:.80}")
        if status := finish.get("status_code"):
            if status == 500:
                raise _FaultError(f"it gave the request up: {finish.get('message')}")
            raise EngineError(f"{self.url} gave the request up: {finish.get('message')}")

    def _new_tokens(
        self, ids: Any, meta: dict[str, Any], finish: dict[str, Any] | None, expected: Expected
    ) -> tuple[list[int], list[float], list[list[tuple[float, int]]]]:
        """Return the sound ids [N], logprobs [N] and most likely tokens [N][K] or [] that a state adds.

        Raises:
            _FaultError: It is not sound.
        """
        scored, top = meta.get("output_token_logprobs") or [], meta.get("output_top_logprobs") or []
        known, incremental = len(self.output_ids), self.incremental
        try:
            # SGLang ends a reply that it aborts while it is queued, as after a pause in mode `retract`, with the logprobs of all
            # tokens, after those that no state has brought yet, and with the last token once more.
            count = meta.get("completion_tokens")
            aborted = finish is not None and finish["type"] == "abort"
            if incremental and aborted and type(count) is int and known <= count <= len(scored):
                incremental, scored, top = False, scored[len(scored) - count :], top[max(0, len(top) - count) :]
                ids = [entry[1] for entry in scored]
            if not incremental:
                if ids[:known] != self.output_ids:
                    raise _FaultError("it changed tokens that it had sent before")
                ids, scored, top = ids[known:], scored[known:], top[known:]
            logprobs = [entry[0] for entry in scored]
            scored_ids = [entry[1] for entry in scored]
            tops = [[(logprob, token) for logprob, token, *_ in entries] for entries in top]
            if (most := expected.max_new_tokens) is not None and known + len(ids) > most:
                raise _FaultError(f"it has {known + len(ids)} tokens, {most} were asked for at most")
            _raise(fault_of_tokens(ids, logprobs, expected, known) or fault_of_top(tops, expected, known))
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise _FaultError("its ids are no list, or its logprobs are not [logprob, id, text]") from error
        if scored_ids != ids:
            raise _FaultError("its logprobs are of other tokens than its ids")
        most_likely = len(self._top) + len(tops)
        if most_likely != known + len(ids) and (most_likely or expected.top_logprobs):
            raise _FaultError(f"it has {known + len(ids)} tokens and the most likely ones of {most_likely}")
        return ids, rounded(logprobs), tops

    def _check_end(self, finish: dict[str, Any], last: list[int], count: int, expected: Expected) -> None:
        """Check how a reply of so many tokens has ended, the last of which is `last`.

        Raises:
            _FaultError: It is not sound.
        """
        matched = finish.get("matched")
        if isinstance(matched, str) and matched not in self.stops:
            # SGLang ends a reply whose logits are NaN as if it had met the stop string "NaN happened".
            raise _FaultError(f"it stopped at {matched!r:.80}, which was not asked for")
        if type(matched) is int and last != [matched]:
            raise _FaultError(f"it stopped at token {matched}, and its last is {last}")
        if not count and finish["type"] != "abort":
            raise _FaultError(f"it ended with {finish['type']} before its first token")

    def _spans_after(self, meta: dict[str, Any], count: int, expected: Expected) -> list[VersionSpan]:
        """Return what is sure of the versions after a state, with which the reply has so many tokens.

        Raises:
            _FaultError: It is not sound.
        """
        if self.version is not None:
            return [VersionSpan(self.version, 0, count)] if count else []
        if "weight_versions" in meta:
            return _reported_spans(meta["weight_versions"], count, expected)
        if meta.get("finish_reason") is not None and count:
            raise _FaultError("it does not say which weights made its tokens, as SGLang does from 0.5.23 on")
        version = version_number(served := meta.get("weight_version", "default"))
        if version < 0 or (expected.newest_version is not None and version > expected.newest_version):
            raise _FaultError(f"it serves version {served!r}, the newest is {expected.newest_version}")
        _check_age(version, expected)
        # No update has begun since the request, so no token of this state, however late it was sent, is of other weights.
        if version == expected.only_version and count and _end(self._spans) == len(self.output_ids):
            return [VersionSpan(version, 0, count)]
        return self._spans

    def so_far(self) -> Generation:
        """Return the tokens that have come and whose versions are sure, to be continued. One that has ended says so with its `finish`."""
        return self._whole or self._generation("abort")

    def finished(self) -> Generation:
        """Return the whole reply.

        Raises:
            UnreachableError: It is not whole.
        """
        if self._whole is None:
            raise UnreachableError(f"{self.url} closed the stream before the reply ended", self.so_far())
        return self._whole

    def _generation(self, finish: FinishReason) -> Generation:
        count = _end(self._spans)
        return Generation(
            output_ids=self.output_ids[:count],
            logprobs=self._logprobs[:count],
            versions=self._spans,
            finish=finish,
            cached_tokens=self._cached_tokens,
            top_logprobs=self._top[:count],
        )


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
    return 0 if reported[:1].isalpha() else -1


def _reported_spans(reported: Any, tokens: int, expected: Expected) -> list[VersionSpan]:
    try:
        spans = [VersionSpan(version_number(span["version"]), span["start"], span["end"]) for span in reported]
    except (TypeError, KeyError) as error:
        raise _FaultError(f"its version spans are {reported!r:.80}") from error
    if not tokens and [(span.start, span.end) for span in spans] == [(0, 0)]:
        return []  # so SGLang says of a reply that ended before its first token
    _raise(fault_of_versions(spans, tokens, expected))
    for span in spans:
        _check_age(span.version, expected)
    return spans


def _check_age(version: int, expected: Expected) -> None:
    oldest = expected.oldest_version
    if oldest is not None and version < oldest:
        raise _OutdatedError(
            f"computes with version {version} though it was given {oldest}: it was started again behind our back"
        )


def _end(spans: Sequence[VersionSpan]) -> int:
    return spans[-1].end if spans else 0


def _raise(fault: str | None) -> None:
    if fault is not None:
        raise _FaultError(fault)
