"""Details of a reward: what JSON holds is kept with the episode, up to a bound; all else is named and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl import Reward
from agentrl.errors import BadRewardError
from agentrl.record.end_reason import EndReason
from agentrl.reward import MAX_DETAILS_CHARS
from agentrl.run.open_run import open_run
from agentrl.store.changes import InsertEpisode
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from tests.recorded_run import record_run

HOSTILE = {"verdict": {"passed": 1, "text": "\ud800\0\x1b[31m<script>"}, "tests": [None, 0.5, "🙂"]}


def test_details_are_kept_as_they_are_with_their_episode(tmp_path: Path) -> None:
    details = Reward(1, details=HOSTILE).details
    assert details == HOSTILE
    assert Reward.of(Reward(0.5, {"n": 1}, HOSTILE)).details == HOSTILE
    record_run(tmp_path / "run", steps=1)
    with Store(tmp_path / "run" / "store.sqlite") as store:
        ended = Outcome(reason=EndReason.FINISHED, details=json.dumps(details))
        (number,) = store.write([InsertEpisode(0, 9, 0, ended)])
    run = open_run(tmp_path / "run")
    assert run.episode(number).details == HOSTILE
    assert run.episode(1).details == {}, "it has none"


def test_beyond_the_bound_the_middle_is_left_out_and_what_fits_stays_as_it_is() -> None:
    size = 3 * MAX_DETAILS_CHARS
    details = Reward(
        0, details={"verdict": {"passed": 1}, "program": "a" * size, "tests": [1] * size, "last": "z"}
    ).details
    assert details["verdict"] == {"passed": 1}
    for name, characters in (("program", "a"), ("tests", "1, ")):
        assert "characters left out]" in details[name]
        assert set(details[name].partition("\n[")[0]) <= {*characters, *'{"tests": ['}
    assert len(json.dumps(details)) < MAX_DETAILS_CHARS + 500


def test_of_more_details_than_have_room_the_first_are_kept_and_the_others_counted() -> None:
    given = {"x" * 1_000_000: 1, **{f"case {number}": "passed" for number in range(20_000)}}
    details = Reward(0, details=given).details
    assert len(json.dumps(details)) < MAX_DETAILS_CHARS + 500
    assert details["case 0"] == "passed"
    assert details["details_left_out"] == 20_001 - (len(details) - 1)


@pytest.mark.parametrize(
    ("details", "named"),
    [
        ({"at": {"when": object()}}, r"details\['at'\] is .*, no JSON: .*not JSON serializable"),
        ({"loss": float("nan")}, r"details\['loss'\] is nan, no JSON"),
        ({(1, 2): 3}, r"details\[\(1, 2\)\] is 3, no JSON"),
        ("too long", "details is 'too long'; it must be a mapping"),
    ],
)
def test_what_json_does_not_hold_is_named(details: Any, named: str) -> None:
    with pytest.raises(BadRewardError, match=named):
        Reward(1, details=details)
