"""Frames between the main process and a worker: they arrive as they were sent, or end the connection."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.adapters import Adapter
from agentrl.engine.client import EngineLimits
from agentrl.engine.client.replica import FleetState, ReplicaReport
from agentrl.engine.client.server import ServedModel, ServerAbilities
from agentrl.proxy import SamplingDefaults
from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.rollout.workers import protocol
from agentrl.rollout.workers.protocol import Connection, EpisodeResult, Frame, Report, Run, SendCall
from agentrl.store.call_log import open_call_log
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.rows import pack, row_of
from agentrl.store.store import Store
from tests.store.test_packed_records import conversation, said

pytestmark = pytest.mark.anyio


class Pieces:
    """A stream of bytes that come in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def send(self, item: bytes) -> None:
        self._pieces.append(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._pieces:
            raise anyio.EndOfStream
        return self._pieces.pop(0)


async def sent(frames: list[Frame]) -> bytes:
    """The bytes of frames that are sent together."""
    stream = Pieces([])
    connection = Connection(stream, protocol.TO_MAIN)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        for frame in frames:
            connection.send(frame)
        tasks.start_soon(connection.send_all)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    (content,) = stream._pieces
    return content


async def received(pieces: list[bytes]) -> list[protocol.ToMain]:
    return [frame async for frame in Connection(Pieces(pieces), protocol.TO_MAIN).frames()]  # type: ignore[arg-type]


texts = st.text()
numbers = st.floats(allow_nan=False)
generations = st.builds(
    Generation,
    output_ids=st.lists(st.integers(-(2**63), 2**63 - 1)),
    logprobs=st.lists(numbers),
    versions=st.lists(st.builds(VersionSpan, *[st.integers(0, 9)] * 3)),
    finish=st.sampled_from(["stop", "length"]),
    cached_tokens=st.integers(0, 2**31),
    top_logprobs=st.lists(st.lists(st.tuples(numbers, st.integers(0, 2**31)))),
)
calls = st.builds(RecordedChoice, texts, texts, st.integers(0, 99), st.lists(texts), generations).map(row_of)
runs = st.builds(
    Run, episode=st.integers(0, 9), task=texts, seed=st.integers(0, 2**31), group_seed=st.none() | st.integers(0, 2**31),
    defaults=st.builds(SamplingDefaults), calls=st.lists(calls),
    made_here=st.lists(st.tuples(texts, st.integers(0, 9))),
)  # fmt: skip
servers = st.dictionaries(texts, st.builds(ServerAbilities))
models = st.builds(
    ServedModel, vocabulary=st.none() | st.integers(1, 9), version=st.none() | st.integers(0, 9), keeps_cache=st.booleans(),
    adapters=st.dictionaries(texts, st.builds(Adapter, texts, st.integers(0, 9), texts)),
)  # fmt: skip
fleets = st.builds(
    FleetState, st.integers(0, 9), servers, st.lists(texts), st.booleans(), st.booleans(), models, st.builds(EngineLimits),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(frame=runs | st.builds(protocol.FleetChanged, fleets))
def test_a_frame_arrives_as_it_was_sent(frame: protocol.ToWorker) -> None:
    assert protocol.TO_WORKER.decode(protocol.ENCODER.encode(frame)) == frame


@settings(max_examples=50, deadline=None)
@given(error=texts, generation=generations, reward=numbers)
def test_an_outcome_arrives_with_its_record(error: str, generation: Generation, reward: float) -> None:
    record, _ = conversation(2)
    record.add("b", record.turns[0], [*record.turns[0].token_ids(), 7], generation, 0.5)
    outcome = Outcome(reason=EndReason.ERROR, reward=reward, error=error, record=pack(record), conversations=2, details=json.dumps({error: 1}), rerendered_tokens=7)  # fmt: skip
    frame = protocol.TO_MAIN.decode(protocol.ENCODER.encode(EpisodeResult.of(3, outcome, pack(record))))
    assert isinstance(frame, EpisodeResult)
    arrived = frame.outcome({})
    assert arrived.record.to_json() == record.to_json()
    assert {**vars(arrived), "record": 0} == {**vars(outcome), "record": 0}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        await in_thread(store.write, [OpenGroup(0, 0, 0)])
        yield store


@pytest.mark.parametrize("count", [0, 1, 4])
async def test_calls_that_were_committed_are_only_named_and_the_episode_is_stored_as_if_it_was_sent_whole(
    store: Store, count: int
) -> None:
    record, choices = conversation(4)
    async with open_call_log(store) as writer:
        of_worker = {choice.key: row_of(choice) for choice in choices[:count]}
        call_log = writer.episode(0, 0)
        for call in of_worker.values():
            (frame,) = await received([await sent([SendCall(1, 0, call)])])
            assert isinstance(frame, SendCall)
            committed = anyio.Event()
            call_log.enqueue(frame.call, committed.set)
            with anyio.fail_after(60):
                await committed.wait()
        packed = pack(record, of_worker)
        (ended,) = await received(
            [await sent([EpisodeResult.of(0, Outcome(reason=EndReason.FINISHED, reward=1.0), packed)])]
        )
        assert isinstance(ended, EpisodeResult)
        assert [call.is_reference for call in ended.calls] == [True] * count + [False] * (4 - count)
        outcome = ended.outcome(of_worker)
        assert outcome.record.figures() == record.figures()
        await writer.commit(InsertEpisode(0, 0, 7, outcome, call_log.close()))
        assert "turns" not in vars(outcome.record), "nothing of it was decoded"
    (stored,) = await in_thread(store.episodes, [0])
    assert stored.record.to_json() == record.to_json() == outcome.record.to_json()
    if count:
        with pytest.raises(KeyError):
            ended.outcome({})


FRAMES: list[Frame] = [
    SendCall(1, 2, row_of(RecordedChoice("q", "a", 0, ["x"], said(5, 6, top=True)))),
    Report({"x": 1.0}, ReplicaReport(1, {"http://a": 2}, {"http://a": 5}, 3, "")),
    EpisodeResult.of(2, Outcome(reason=EndReason.FINISHED), pack(conversation(3)[0])),
]


@settings(max_examples=50, deadline=None)
@given(order=st.permutations(FRAMES), seed=st.integers(0, 2**32))
def test_frames_arrive_whole_and_in_order_however_the_stream_is_cut(order: list[Frame], seed: int) -> None:
    content, cuts, pieces = anyio.run(sent, order), random.Random(seed), list[bytes]()
    while content:
        size = cuts.choice([1, 3, 4, 5, 50, 1000])
        pieces.append(content[:size])
        content = content[size:]
    assert anyio.run(received, pieces) == order


@settings(max_examples=30, deadline=None)
@given(frame=st.sampled_from(FRAMES), at=st.integers(0, 2**16), value=st.integers(0, 255), cut=st.booleans())
def test_a_stream_that_is_damaged_ends_the_connection_and_raises_nothing(
    frame: Frame, at: int, value: int, cut: bool
) -> None:
    content = anyio.run(sent, [frame])
    at %= len(content)
    damaged = content[:at] if cut else content[:at] + bytes([value]) + content[at + 1 :]
    assert len(anyio.run(received, [damaged])) <= 1
