"""Records and replies that pass the main process as bytes: over the channel, to the store, and back; nothing is lost or doubled on the way."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.store.call_log import StoreWriter, open_call_log
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.episodes import resumed_groups
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        await in_thread(store.write, [OpenGroup(0, 0, 0)])
        yield store


def said(*ids: int, cached: int = 0, top: bool = False) -> Generation:
    logprobs = [-0.5] * len(ids)
    top_logprobs = [[(-0.5, token)] for token in ids] if top else []
    spans = [VersionSpan(0, 0, 1), VersionSpan(1, 1, len(ids))] if len(ids) > 1 else [VersionSpan(0, 0, len(ids))]
    return Generation(
        output_ids=list(ids), logprobs=logprobs, versions=spans, finish="stop", cached_tokens=cached, top_logprobs=top_logprobs
    )  # fmt: skip


def conversation(turns: int) -> tuple[TokenRecord, list[RecordedChoice]]:
    """A record, and its replies as they were kept."""
    record, choices = TokenRecord(), []
    for index in range(turns):
        generation = said(100 + index, 70_000 + index, cached=index, top=index % 2 == 1)
        parent = record.turns[-1] if record.turns else None
        ids = [*(parent.token_ids() if parent else []), 1, 2, index]
        turn = record.add(f"call-{index}", parent, ids, generation, 1.0)
        turn.request, turn.tool_call_ids, turn.tools = f"question {index}", [f"tool_{index}"], True
        choices.append(RecordedChoice(turn.request, turn.completion_id, 0, turn.tool_call_ids, generation))
    return record, choices


def rows_of(store: Store) -> list[tuple[int | None, int | None, str]]:
    return store._db.execute("SELECT episode, turn, completion_id FROM calls ORDER BY episode, turn").fetchall()


async def test_what_happens_at_the_same_time_is_committed_together_and_in_its_order(store: Store) -> None:
    begun: list[str] = []
    store._db.set_trace_callback(lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None)
    record, _ = conversation(2)
    numbers: dict[int, int] = {}

    async with open_call_log(store) as writer:

        async def group(number: int) -> None:
            await writer.commit(OpenGroup(number, 0, number))
            ended = Outcome(reason=EndReason.FINISHED, reward=1.0, record=record)
            numbers[number] = await writer.commit(InsertEpisode(number, 0, 0, ended))
            await writer.commit(CloseGroup(number))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(1, 41):
                    tasks.start_soon(group, number)
    store._db.set_trace_callback(None)
    assert len(begun) < 40, "of 120 changes"
    assert sorted(numbers.values()) == list(range(1, 41))
    assert [group.id for group in await in_thread(store.read, resumed_groups) if group.state == "ready"] == list(
        range(1, 41)
    )


async def test_a_store_that_fails_fails_all_who_wait_for_it_and_who_come_later(store: Store) -> None:
    failed: list[str] = []

    async def end(writer: StoreWriter, episode_index: int) -> None:
        outcome = Outcome(reason=EndReason.FINISHED, reward=1.0)
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(60):
                await writer.commit(InsertEpisode(0, episode_index, 0, outcome))
        except sqlite3.IntegrityError:
            failed.append("refused")

    with pytest.RaisesGroup(sqlite3.IntegrityError, flatten_subgroups=True):
        async with open_call_log(store) as writer:
            await writer.commit(InsertEpisode(0, 0, 0, Outcome(reason=EndReason.FINISHED, reward=1.0)))
            try:
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):  # an episode cannot finish twice
                        tasks.start_soon(end, writer, 0)
                    tasks.start_soon(end, writer, 1)
            finally:
                with anyio.CancelScope(shield=True):
                    await end(writer, 2)
    assert failed == ["refused"] * 5
