"""The text of a failure: where in the user's own code, and why; long text keeps its ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.reward import Reward
from agentrl.system.failure_text import cut_middle, describe, place_of_task, users_part


def failure(raises: Callable[[], Any]) -> str:
    try:
        raises()
    except Exception as error:
        return describe(error)
    raise AssertionError("it did not raise")


def own() -> None:
    json.loads("{")


def test_frames_of_libraries_are_left_out() -> None:
    shown = users_part(failure(own))
    assert shown.splitlines()[-3:] == [
        f'  File "{__file__}", line {own.__code__.co_firstlineno + 1}, in own',
        '    json.loads("{")',
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ]
    assert "decoder.py" not in shown


def test_lines_that_no_user_wrote_are_left_out() -> None:
    def earns_nothing() -> None:
        Reward(float("nan"))

    shown = users_part(failure(earns_nothing))
    assert "<string>" not in shown
    assert [line.strip() for line in shown.splitlines()[-2:]] == [
        'Reward(float("nan"))',
        "BadRewardError: the reward is nan; it must be a finite number from -1e+06 to 1e+06",
    ]


def test_the_last_of_several_exceptions_is_shown() -> None:
    def chained() -> None:
        try:
            own()
        except ValueError as error:
            raise RuntimeError("no answer") from error

    shown = users_part(failure(chained))
    assert shown.endswith("RuntimeError: no answer")
    assert "JSONDecodeError" not in shown


def test_what_is_no_traceback_stays_as_it_is() -> None:
    assert users_part("timed out after 3 s") == "timed out after 3 s"


@pytest.mark.parametrize(
    ("text", "max_chars", "cut"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc\n[1 characters left out]\nefg"),
        ("abcdefg", 5, "ab\n[3 characters left out]\nfg"),
        ("abc", 1, "\n[3 characters left out]\n"),
        ("", 0, ""),
    ],
)
def test_a_text_loses_its_middle_where_it_is_too_long(text: str, max_chars: int, cut: str) -> None:
    assert cut_middle(text, max_chars) == cut


def test_what_is_left_out_is_counted() -> None:
    assert "[1,999,980 characters left out]" in cut_middle("x" * 2_000_000, 20)


@pytest.mark.anyio
async def test_a_suspended_task_has_the_place_in_the_users_code_where_it_waits() -> None:
    async def waits() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    assert place_of_task(task) == f"{__file__}:{waits.__code__.co_firstlineno + 1} in waits"
    task.cancel()
