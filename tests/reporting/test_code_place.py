"""The place where a task waits, whatever it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from agentrl.reporting.code_place import place_of_task


class AnswersNothing:
    """Something to await, which has no place where it waits."""

    cr_frame = gi_frame = ag_frame = property(lambda self: 1 / 0)

    def __await__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return None

    __iter__ = __await__


@pytest.mark.anyio
async def test_a_task_that_awaits_what_answers_no_question_has_a_place() -> None:
    async def waits() -> None:
        await AnswersNothing()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    assert place_of_task(task) == f"{__file__}:{waits.__code__.co_firstlineno + 1} in waits"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
