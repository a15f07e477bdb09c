"""The invariant of the token record, for tests of everything that writes one."""

from __future__ import annotations

from typing import Any

from agentrl.engine.client import SGLangEngine
from agentrl.engine.protocol import OnProgress, Sampling
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord


class Tapped:
    """An engine that remembers what it was sent and what it returned."""

    def __init__(self, engine: SGLangEngine) -> None:
        self._engine = engine
        self.calls: list[tuple[list[int], Generation]] = []
        self.by_session: dict[str, list[tuple[list[int], Generation]]] = {}

    @property
    def version(self) -> int:
        return self._engine.version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> Generation:
        generation = await self._engine.generate(input_ids, sampling, session, on_progress, **options)
        self.calls.append((list(input_ids), generation))
        self.by_session.setdefault(session, []).append(self.calls[-1])
        return generation


def assert_record_is_what_the_engine_saw(record: TokenRecord, calls: list[tuple[list[int], Generation]]) -> None:
    """Each turn is one call: its path is the ids that were sent and returned, each with a logprob and a version."""
    assert len(record.turns) == len(calls)
    seen = sorted((sent, generation.output_ids) for sent, generation in calls)
    recorded = sorted(
        (turn.token_ids()[: len(turn.token_ids()) - len(turn.output_ids)], turn.output_ids) for turn in record.turns
    )
    assert recorded == seen
    for turn in record.turns:
        covered = [position for span in turn.versions for position in range(span.start, span.end)]
        assert covered == list(range(len(turn.output_ids)))
        assert len(turn.logprobs) == len(turn.output_ids)
