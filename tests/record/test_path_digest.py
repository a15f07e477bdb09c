"""A turn knows the length and the digest of its path without walking it: they are what walking it gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.record.rolling_digest import RollingDigest
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn

IDS = st.lists(st.integers(0, 3), max_size=4)
CALLS = st.lists(st.tuples(st.integers(0, 100), IDS, IDS, st.booleans()), min_size=1, max_size=20)


def generation(ids: list[int]) -> Generation:
    spans = [VersionSpan(0, 0, len(ids))] if ids else []
    return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), versions=spans, finish="stop")


def walked(turn: Turn | None) -> list[int]:
    """The ids of a path, one by one."""
    return [] if turn is None else [*walked(turn.parent), *turn.prompt_ids, *turn.output_ids]


def grown(calls: list[tuple[int, list[int], list[int], bool]]) -> TokenRecord:
    """A tree: each call goes on from the one that its number picks, if any, with ids of its own, and knows its digest or not."""
    record = TokenRecord()
    for pick, new, said, known in calls:
        parent = ([None, *record.turns])[pick % (len(record.turns) + 1)]
        digest = (parent.path_digest() if parent else RollingDigest()).with_ids(new)
        record.add("call", parent, walked(parent) + new, generation(said), 1.0, (), digest if known else None)
    return record


@given(CALLS, st.randoms())
def test_length_and_digest_of_a_path_are_those_of_its_ids(calls: Any, random: Any) -> None:
    record = grown(calls)
    again = TokenRecord.from_json(record.to_json())  # which knows no digests yet
    for turns in (record.turns, random.sample(again.turns, len(again.turns))):
        for turn in turns:
            ids = walked(turn)
            assert turn.token_ids() == ids
            assert turn.length == len(ids)
            assert turn.path_digest() == RollingDigest().with_ids(ids)
    for one in record.turns:
        for other in again.turns:
            assert (one.path_digest() == other.path_digest()) == (walked(one) == walked(other))


@given(CALLS, IDS, IDS)
def test_ids_are_refused_that_do_not_extend_their_parent_and_no_others(calls: Any, begin: Any, new: Any) -> None:
    for parent in grown(calls).turns:
        path = walked(parent)
        for ids in (path + new, begin + path + new, begin + new, path[:-1]):
            if ids[: len(path)] == path:
                assert TokenRecord().add("next", parent, ids, generation([7]), 1.0).prompt_ids == ids[len(path) :]
            else:
                with pytest.raises(ValueError, match="do not extend the path"):
                    TokenRecord().add("next", parent, ids, generation([7]), 1.0)


def test_a_digest_that_is_of_other_ids_is_refused() -> None:
    record = TokenRecord()
    root = record.add("a", None, [1, 2], generation([3]), 1.0)
    with pytest.raises(ValueError, match="do not extend the path"):
        record.add("b", root, [1, 2, 3, 4], generation([5]), 1.0, (), RollingDigest().with_ids([1, 2, 3, 5]))
    with pytest.raises(ValueError, match="do not extend the path"):
        record.add("b", None, [1, 2], generation([5]), 1.0, (), root.path_digest())


def test_a_path_of_many_turns_is_digested_without_recursion() -> None:
    record = TokenRecord()
    for number in range(3000):
        parent = record.turns[-1] if record.turns else None
        record.turns.append(Turn("call", parent, [number], [1], [-0.5], [VersionSpan(0, 0, 1)], 1.0))
    last = record.turns[-1]
    assert last.path_digest() == RollingDigest().with_ids(last.token_ids())


@given(st.lists(st.tuples(IDS, st.text(max_size=3)), max_size=6))
def test_where_content_is_cut_does_not_matter(pieces: list[tuple[list[int], str]]) -> None:
    rolling, whole = RollingDigest(), b""
    for ids, text in pieces:
        rolling = rolling.with_ids(ids).with_text(text)
        whole += b"".join(token.to_bytes(8, "little") for token in ids) + text.encode()
        assert rolling == RollingDigest().with_bytes(whole)
        assert rolling.length == len(whole)
