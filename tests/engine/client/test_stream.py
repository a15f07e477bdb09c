"""How the version of a token of a growing reply is known: it is given, served, or reported."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from agentrl.engine.client.stream import BadReplyError, GrowingReply, ServerLostError, events, version_number
from agentrl.record.soundness import Expected
from agentrl.record.tokens import VersionSpan

SPANS = [{"version": "3", "start": 0, "end": 2}, {"version": 4, "start": 2, "end": 5}]


def expected(only: int | None = None, oldest: int | None = None) -> Expected:
    return Expected(newest_version=4, oldest_version=oldest, only_version=only)


def test_a_version_that_the_request_named_made_all_tokens_whatever_the_server_says() -> None:
    reply = reply_of_five(version=3)
    reply.grow(state({"weight_version": "nonsense", "weight_versions": SPANS}))
    assert reply.so_far().versions == [VersionSpan(3, 0, 5)]


@pytest.mark.parametrize("updating", [False, True])
def test_a_served_version_is_sure_until_an_update_begins(updating: bool) -> None:
    bounds = [expected(only=3), expected(only=None if updating else 3), expected(only=3)]
    reply = GrowingReply("url", incremental=True, prompt_tokens=3, expected=lambda: bounds.pop(0))
    for _ in range(2):
        reply.grow(state({"weight_version": "3"}))
    assert reply.so_far().versions == [VersionSpan(3, 0, 5 if updating else 10)]
    reply.grow(state({"weight_version": "3"}))
    assert reply.so_far().versions == [VersionSpan(3, 0, 5 if updating else 15)], "nothing is sure after what is not"


@pytest.mark.parametrize(("name", "version"), [("default", 0), ("my-model", 0), ("7", 7), (7, 7)])
def test_the_weights_that_a_server_started_with_may_have_a_name(name: str | int, version: int) -> None:
    assert version_number(name) == version


def test_reported_versions_are_those_of_the_tokens() -> None:
    reply = reply_of_five()
    reply.grow(state({"weight_version": "4", "weight_versions": SPANS}))
    assert reply.so_far().versions == [VersionSpan(3, 0, 2), VersionSpan(4, 2, 5)]


@pytest.mark.parametrize(
    ("meta", "fault"),
    [
        ({"weight_version": "5"}, "it serves version '5', the newest is 4"),
        ({"weight_version": []}, r"it serves version \[\], the newest is 4"),
        ({"weight_versions": [{"version": 3}]}, "its version spans are"),
        ({"weight_versions": SPANS[1:]}, "where one from 0 on was due"),
        ({"weight_versions": [{"version": 3, "start": 0, "end": 9}]}, "cover 9 of 5 tokens"),
        ({"weight_version": "3", "finish_reason": {"type": "stop"}}, "does not say which weights made its tokens"),
    ],
)
def test_versions_that_cannot_be_are_faults(meta: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadReplyError, match=fault):
        reply_of_five().grow(state(meta))


@pytest.mark.parametrize("meta", [{"weight_version": "3"}, {"weight_versions": SPANS}])
def test_a_server_of_older_weights_than_it_was_given_was_started_again(meta: dict[str, Any]) -> None:
    with pytest.raises(ServerLostError, match="computes with version 3 though it was given 4"):
        reply_of_five(oldest=4).grow(state(meta))


def test_nothing_is_kept_of_a_state_that_is_not_sound() -> None:
    reply = reply_of_five(only=3)
    reply.grow(state({"weight_version": "3"}))
    before = reply.so_far()
    with pytest.raises(BadReplyError) as bad:
        reply.grow(state({"weight_versions": SPANS}))
    assert bad.value.partial == reply.so_far() == before
    assert before.versions == [VersionSpan(3, 0, 5)]


def reply_of_five(only: int | None = None, oldest: int | None = None, version: int | None = None) -> GrowingReply:
    bounds = expected(only, oldest)
    return GrowingReply("url", incremental=True, prompt_tokens=3, expected=lambda: bounds, version=version)


def state(meta: dict[str, Any]) -> dict[str, Any]:
    scored = [[-0.5, n, None] for n in range(1, 6)]
    return {"output_ids": [1, 2, 3, 4, 5], "meta_info": {"output_token_logprobs": scored, **meta}}


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 2, 14, 15])
async def test_events_are_the_same_however_they_arrive(size: int) -> None:
    sent = b'data: {"a":1}\n\ndata: {"b":22}\n\ndata: [DONE]\n\n'
    pieces = [sent[start:][:size] for start in range(0, len(sent), size)]
    content = MagicMock(**{"iter_any.return_value.__aiter__.return_value": pieces})
    assert [event async for event in events(content)] == [b'{"a":1}', b'{"b":22}']
