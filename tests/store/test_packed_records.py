"""Records and replies that pass the main process as bytes: over the channel, to the store, and back; nothing is lost or doubled on the way."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.worker import EpisodeCalls
from agentrl.rollout.worker_channel import Beat, Channel, Done, EpisodeEnded, Frame, Keep, encode
from agentrl.store.call_log import open_call_log
from agentrl.store.changes import CloseGroup, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.rows import PackedRecord, pack, row_of
from agentrl.store.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        await in_thread(store.open_group, 0, 0, 0)
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


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
async def test_calls_that_were_kept_are_only_named_and_the_episode_is_stored_as_if_it_was_sent_whole(
    store: Store, kept: int
) -> None:
    record, choices = conversation(4)
    async with open_call_log(store) as writer:
        # In the worker; and what it asks the main process to keep.
        of_worker = {choice.key: row_of(choice) for choice in choices[:kept]}
        main = EpisodeCalls(writer.episode(0, 0))
        safe = anyio.Event()
        for call in of_worker.values():
            arrived = await over_the_channel(Keep(1, 0, call))
            assert isinstance(arrived, Keep)
            main.keep(arrived.reply, safe.set)
        if kept:
            with anyio.fail_after(60):
                await safe.wait()
        packed = pack(record, of_worker)
        ended = await over_the_channel(EpisodeEnded(0, Outcome(status=EndReason.FINISHED, reward=1.0, record=packed)))
        # In the main process.
        assert isinstance(ended, EpisodeEnded)
        found = ended.outcome.record
        assert isinstance(found, PackedRecord)
        assert [bool(call.finish) for call in found.calls] == [False] * kept + [True] * (4 - kept)
        found.find(main.calls)
        assert found.figures() == record.figures()
        assert "turns" not in vars(found), "nothing of it was decoded"
        number = await writer.add(0, 0, 7, ended.outcome, main.call_log)
        assert "turns" not in vars(found)
    assert await in_thread(rows_of, store) == [(number, turn, f"call-{turn}") for turn in range(4)]
    (stored,) = await in_thread(store.episodes, [0])
    assert stored.record.to_json() == record.to_json() == found.to_json()


async def over_the_channel(frame: Frame) -> Frame | None:
    return (await received([encode(frame)]))[0]


class _Pieces:
    """A stream of bytes that come in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._pieces:
            raise anyio.EndOfStream
        piece = self._pieces.pop(0)
        assert len(piece) <= max_bytes
        return piece


async def received(pieces: list[bytes]) -> list[Frame | None]:
    channel = Channel(_Pieces(pieces))  # type: ignore[arg-type]
    frames: list[Frame | None] = []
    while (frame := await channel.receive()) is not None:
        frames.append(frame)
    return frames


FRAMES: list[Frame] = [
    Keep(1, 2, row_of(RecordedChoice("q", "a", 0, ["x"], said(5, 6, top=True)))),
    Done([1, 2, 3]),
    Beat({"x": 1.0}),
    EpisodeEnded(2, Outcome(status=EndReason.FINISHED, record=pack(conversation(3)[0]))),
]


@hypothesis_settings(max_examples=50, deadline=None)
@given(order=st.permutations(range(len(FRAMES))), seed=st.integers(0, 2**32))
def test_frames_arrive_whole_and_in_order_however_the_stream_is_cut(order: list[int], seed: int) -> None:
    sent = [FRAMES[index] for index in order]
    content, numbers, pieces = b"".join(map(encode, sent)), random.Random(seed), list[bytes]()
    while content:
        size = numbers.choice([1, 3, 4, 5, 50, 1000])
        pieces.append(content[:size])
        content = content[size:]
    arrived = anyio.run(received, pieces)
    assert list(map(_shown, arrived)) == list(map(_shown, sent))


def _shown(frame: Frame | None) -> object:
    if isinstance(frame, EpisodeEnded):
        return {**vars(frame.outcome), "record": frame.outcome.record.to_json()}
    return frame


@hypothesis_settings(max_examples=200, deadline=None)
@given(frame=st.sampled_from(FRAMES), at=st.integers(0, 2**16), value=st.integers(0, 255), cut=st.booleans())
def test_a_stream_that_is_damaged_ends_the_channel_and_raises_nothing(
    frame: Frame, at: int, value: int, cut: bool
) -> None:
    content = bytearray(encode(frame))
    at %= len(content)
    if cut:
        del content[at:]
    else:
        content[at] = value
    anyio.run(received, [bytes(content)])


def test_an_outcome_that_names_a_call_which_was_not_kept_is_refused() -> None:
    record, choices = conversation(2)
    kept = {choice.key: row_of(choice) for choice in choices}
    packed = pack(record, kept)
    with pytest.raises(KeyError):
        packed.find({key: call for key, call in kept.items() if key != ("call-1", 0)})


async def test_what_happens_at_the_same_time_is_committed_together_and_in_its_order(store: Store) -> None:
    begun: list[str] = []
    store._db.set_trace_callback(lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None)
    record, _ = conversation(2)
    numbers: dict[int, int] = {}

    async with open_call_log(store) as writer:

        async def group(number: int) -> None:
            await writer.change(OpenGroup(number, 0, number))
            numbers[number] = await writer.add(
                number, 0, 0, Outcome(status=EndReason.FINISHED, reward=1.0, record=record)
            )
            await writer.change(CloseGroup(number))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(1, 41):
                    tasks.start_soon(group, number)
    store._db.set_trace_callback(None)
    assert len(begun) < 40, "of 120 changes"
    assert sorted(numbers.values()) == list(range(1, 41))
    assert [group.id for group in await in_thread(store.pending_groups) if group.state == "ready"] == list(range(1, 41))


async def test_a_store_that_fails_fails_all_who_wait_for_it_and_who_come_later(store: Store) -> None:
    failed: list[str] = []

    async def end(writer: object, episode_index: int) -> None:
        outcome = Outcome(status=EndReason.FINISHED, reward=1.0)
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(60):
                await writer.add(0, episode_index, 0, outcome)  # type: ignore[attr-defined]
        except sqlite3.IntegrityError:
            failed.append("refused")

    with pytest.RaisesGroup(sqlite3.IntegrityError, flatten_subgroups=True):
        async with open_call_log(store) as writer:
            await writer.add(0, 0, 0, Outcome(status=EndReason.FINISHED, reward=1.0))
            try:
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):  # an episode cannot finish twice
                        tasks.start_soon(end, writer, 0)
                    tasks.start_soon(end, writer, 1)
            finally:
                with anyio.CancelScope(shield=True):
                    await end(writer, 2)
    assert failed == ["refused"] * 5
