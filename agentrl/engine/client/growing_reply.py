"""A reply while a server streams it. Nothing of it is shown before it has been checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentrl.engine.client.server_errors import BadReplyError, ServerLostError, UnreachableError
from agentrl.engine.client.version_tracker import VersionTracker
from agentrl.errors import EngineError
from agentrl.record.soundness import (
    Expected,
    fault_of,
    fault_of_tokens,
    fault_of_top,
    rounded,
)
from agentrl.record.tokens import FinishReason, Generation, VersionSpan


class GrowingReply:
    """The sound tokens of a reply, as they come, with the versions of those of which these are sure.

    Args:
        url: the server, for messages.
        incremental: whether a state holds the new tokens alone.
        prompt_tokens: length of what was sent.
        expected: what the reply may be. It is asked anew for every state, because weights change meanwhile.
        stops: the stop strings that were sent.
        version: the weights that the request named, if it did.
    """

    def __init__(
        self,
        url: str,
        *,
        incremental: bool,
        prompt_tokens: int,
        expected: Callable[[], Expected],
        stops: Sequence[str] = (),
        version: int | None = None,
    ) -> None:
        self._url = url
        self._incremental = incremental
        self._prompt_tokens = prompt_tokens
        self._expected = expected
        self._stops = stops
        self.output_ids: list[int] = []
        self._logprobs: list[float] = []
        """[T] logprobs of the tokens that have been checked; `output_ids` may be ahead of them."""
        self._scored: list[Any] = []
        self._top: list[list[tuple[float, int]]] = []
        self._cached_tokens = 0
        self._versions = VersionTracker(version)
        self._settled = 0
        """Tokens that came before the last state: where a part of it is not sound, nothing of it is trusted."""
        self._whole: Generation | None = None

    def grow(self, state: Any) -> None:
        """Take the server's next state in.

        Raises:
            BadReplyError: It cannot be right.
            EngineError: It is a refusal.
        """
        self._settled = len(self._logprobs)
        self._versions.settle()
        if not isinstance(state, dict):
            raise self._bad(f"it sent {type(state).__name__}, not an object")
        if "meta_info" not in state:
            raise EngineError(f"{self._url} gave the request up: {state.get('error', state)}")
        meta, ids = state["meta_info"], state.get("output_ids", [])
        if not isinstance(meta, dict) or not isinstance(ids, list):
            raise self._bad("its meta_info is no object, or its output_ids are no list")
        expected = self._expected()
        finish = meta.get("finish_reason")
        if finish is not None and not (isinstance(finish, dict) and finish.get("type") in ("stop", "length", "abort")):
            raise self._bad(f"it ended with {finish!r:.80}")
        prompt_tokens = meta.get("prompt_tokens", self._prompt_tokens)
        # SGLang drops the prompt of a request that its scheduler refuses, and says why.
        if prompt_tokens != self._prompt_tokens and not (finish and finish.get("status_code")):
            raise EngineError(
                f"{self._url} made {prompt_tokens} tokens of a prompt of {self._prompt_tokens}: it prepares images "
                "otherwise than the model's renderer"
            )
        self._take_tokens(ids, meta, expected)
        self._take_versions(meta, expected)
        cached = meta.get("cached_tokens", 0)
        self._cached_tokens = cached if type(cached) is int else 0
        if finish is not None:
            self._whole = self._ended(finish, expected)

    def _take_tokens(self, ids: list[Any], meta: dict[str, Any], expected: Expected) -> None:
        scored, top = meta.get("output_token_logprobs") or [], meta.get("output_top_logprobs") or []
        if not isinstance(scored, list) or not isinstance(top, list):
            raise self._bad("its logprobs are no list")
        whole = not self._incremental
        if self._incremental and (count := self._repeated(scored, meta)) is not None:
            scored, top, whole = scored[len(scored) - count :], top[max(0, len(top) - count) :], True
            ids = [entry[1] if isinstance(entry, list) and len(entry) > 1 else None for entry in scored]
        if whole:
            known = self.output_ids[: len(ids)]
            if ids[: len(known)] != known:
                raise self._bad("it changed tokens that it had sent before")
            ids, scored, top = ids[len(known) :], scored[len(self._scored) :], top[len(self._top) :]
        ids, scored = self.output_ids[len(self._logprobs) :] + ids, self._scored[len(self._logprobs) :] + scored
        count = min(len(ids), len(scored))
        checked = len(self._logprobs)
        try:
            logprobs = [entry[0] for entry in scored[:count]]
            named = [entry[1] for entry in scored[:count]]
            tops = [[(logprob, token) for logprob, token, *_ in entries] for entries in top]
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise self._bad("its logprobs are not [logprob, id, text]") from error
        fault = fault_of_tokens(ids[:count], logprobs, expected, checked)
        fault = fault or fault_of_top(tops, expected, len(self._top))
        if fault is None and named != ids[:count]:
            fault = "its logprobs are of other tokens than its ids"
        if fault is None and expected.max_new_tokens is not None and checked + len(ids) > expected.max_new_tokens:
            fault = f"it has {checked + len(ids)} tokens, {expected.max_new_tokens} were asked for at most"
        if fault is not None:
            raise self._bad(fault)
        del self.output_ids[checked:], self._scored[checked:]
        self.output_ids += ids
        self._scored += scored
        self._logprobs += rounded(logprobs)
        self._top += tops

    def _repeated(self, scored: list[Any], meta: dict[str, Any]) -> int | None:
        """Count the tokens that a last state repeats: all that the reply has. None: it holds new tokens alone, as any other.

        SGLang ends a reply that it aborts while it is queued, as after a pause in mode `retract`, with the logprobs of all tokens,
        after those that no state has brought yet, and with the last token once more.
        """
        count, finish = meta.get("completion_tokens"), meta.get("finish_reason")
        aborted = finish is not None and finish["type"] == "abort"
        if aborted and type(count) is int and len(self.output_ids) <= count <= len(scored):
            return count
        return None

    def _take_versions(self, meta: dict[str, Any], expected: Expected) -> None:
        fault = self._versions.take(meta, len(self.output_ids), expected)
        if fault is None:
            return
        if not fault.restarted:
            raise self._bad(fault.text)
        self._drop_last_state()
        raise ServerLostError(f"{self._url} {fault.text}", self.so_far())

    @property
    def checked_ids(self) -> list[int]:
        """The tokens that may be shown: those that have been checked, of every version."""
        return self.output_ids[: len(self._logprobs)]

    def so_far(self) -> Generation:
        """Return the tokens that have come and are sure, to be gone on from. One that has ended says so with its `finish`."""
        if self._whole is not None:
            return self._whole
        spans = self._versions.spans()
        return self._generation(spans, min(len(self._logprobs), spans[-1].end if spans else 0), "abort")

    def finished(self) -> Generation:
        """Return the whole reply.

        Raises:
            UnreachableError: It is not whole.
        """
        if self._whole is None:
            raise UnreachableError(f"{self._url} closed the stream before the reply ended", self.so_far())
        return self._whole

    def _ended(self, finish: dict[str, Any], expected: Expected) -> Generation:
        if status := finish.get("status_code"):
            if status == 500:
                raise self._bad(f"it gave the request up: {finish.get('message')}")
            raise EngineError(f"{self._url} gave the request up: {finish.get('message')}")
        count = len(self.output_ids)
        if not self._versions.end(count):
            raise EngineError(
                f"{self._url} changed its weights during a reply and does not say where; only pause mode abort suits it"
            )
        if len(self._scored) != count:
            raise self._bad(f"it has {count} tokens and the logprobs of {len(self._scored)}")
        matched = finish.get("matched")
        if isinstance(matched, str) and matched not in self._stops:
            # SGLang ends a reply whose logits are NaN as if it had met the stop string "NaN happened".
            raise self._bad(f"it stopped at {matched!r:.80}, which was not asked for")
        if type(matched) is int and self.output_ids[-1:] != [matched]:
            raise self._bad(f"it stopped at token {matched}, and its last is {self.output_ids[-1:]}")
        generation = self._generation(self._versions.spans(), count, finish["type"])
        if (fault := fault_of(generation, expected)) is not None:
            raise self._bad(fault)
        return generation

    def _generation(self, spans: list[VersionSpan], count: int, finish: FinishReason) -> Generation:
        return Generation(
            output_ids=self.output_ids[:count],
            logprobs=self._logprobs[:count],
            versions=[VersionSpan(s.version, s.start, min(s.end, count)) for s in spans if s.start < min(s.end, count)],
            finish=finish,
            cached_tokens=self._cached_tokens,
            top_logprobs=self._top[:count],
        )

    def _bad(self, fault: str) -> BadReplyError:
        self._drop_last_state()
        return BadReplyError(f"{self._url} gave an unsound reply: {fault}", self.so_far())

    def _drop_last_state(self) -> None:
        for column in (self.output_ids, self._logprobs, self._scored, self._top):
            del column[self._settled :]
        self._versions.drop_since_settled(self._settled)
        self._whole = None
