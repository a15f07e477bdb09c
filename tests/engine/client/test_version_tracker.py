"""How the version of a token of a growing reply is known: it is given, served, or reported."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentrl.engine.client.version_tracker import VersionMode, VersionTracker
from agentrl.record.soundness import Expected
from agentrl.record.tokens import VersionSpan

SPANS = [{"version": "3", "start": 0, "end": 2}, {"version": 4, "start": 2, "end": 5}]


def expected(only: int | None = None, oldest: int | None = None) -> Expected:
    return Expected(newest_version=4, oldest_version=oldest, only_version=only)


def test_a_given_version_made_all_tokens_whatever_the_server_says() -> None:
    tracker = VersionTracker(3)
    assert tracker.take({"weight_version": "nonsense", "weight_versions": SPANS}, 5, expected()) is None
    assert (tracker.mode, tracker.spans(), tracker.end(5)) == (VersionMode.GIVEN, [VersionSpan(3, 0, 5)], True)


def test_a_served_version_is_sure_until_a_weight_update_begins() -> None:
    tracker = VersionTracker()
    assert tracker.take({"weight_version": "3"}, 2, expected(only=3)) is None
    assert tracker.take({"weight_version": "3"}, 4, expected(only=None)) is None
    assert (tracker.mode, tracker.spans()) == (VersionMode.SERVED, [VersionSpan(3, 0, 2)])
    assert tracker.end(4)
    assert tracker.spans() == [VersionSpan(3, 0, 4)]


def test_where_the_served_version_changes_the_end_of_a_reply_is_not_known() -> None:
    tracker = VersionTracker()
    tracker.take({"weight_version": "3"}, 2, expected(only=3))
    tracker.take({"weight_version": "4"}, 4, expected(only=4))
    assert tracker.spans() == [VersionSpan(3, 0, 2)]
    assert not tracker.end(4)


def test_reported_versions_are_those_of_the_tokens() -> None:
    tracker = VersionTracker()
    tracker.take({"weight_version": "4"}, 4, expected(only=4))
    assert tracker.take({"weight_version": "4", "weight_versions": SPANS}, 5, expected()) is None
    assert tracker.mode is VersionMode.REPORTED
    assert tracker.spans() == [VersionSpan(3, 0, 2), VersionSpan(4, 2, 5)]
    assert tracker.end(5)


def test_what_came_since_it_was_settled_can_be_dropped() -> None:
    tracker = VersionTracker()
    tracker.take({"weight_version": "3"}, 2, expected(only=3))
    tracker.settle()
    tracker.take({"weight_version": "3"}, 5, expected(only=3))
    tracker.take({"weight_versions": SPANS}, 5, expected())
    tracker.drop_since_settled(2)
    assert (tracker.mode, tracker.spans()) == (VersionMode.SERVED, [VersionSpan(3, 0, 2)])


@pytest.mark.parametrize(
    ("meta", "fault"),
    [
        ({"weight_version": "5"}, "it serves version '5', the newest is 4"),
        ({"weight_version": []}, r"it serves version \[\], the newest is 4"),
        ({"weight_versions": [{"version": 3}]}, "its version spans are"),
        ({"weight_versions": SPANS[1:]}, "where one from 0 on was due"),
        ({"weight_versions": [{"version": 3, "start": 0, "end": 9}]}, "cover 9 tokens, it has 5"),
    ],
)
def test_versions_that_cannot_be_are_faults(meta: dict[str, Any], fault: str) -> None:
    found = VersionTracker().take(meta, 5, expected())
    assert found is not None
    assert not found.restarted
    assert re.search(fault, found.text)


@pytest.mark.parametrize("meta", [{"weight_version": "3"}, {"weight_versions": SPANS}])
def test_a_server_of_older_weights_than_it_was_given_was_started_again(meta: dict[str, Any]) -> None:
    found = VersionTracker().take(meta, 5, expected(oldest=4))
    assert found is not None
    assert found.restarted
    assert "computes with version 3 though it was given 4" in found.text
