"""The reason why each attempt ended is stored with it, and counted."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from agentrl import Episode
from agentrl.errors import SandboxError
from agentrl.proxy import ChatFormat
from tests.rollout.hostile_run import GROUP_SIZE, call, play


async def ends(episode: Episode) -> Any:
    """Ends as its task says."""
    number = episode.task["n"]
    if number != 3:
        await call(episode)
    match number:
        case 0:
            raise ValueError("no")
        case 1:
            sys.exit(1)
        case 2:
            raise asyncio.CancelledError
        case 4:
            return "no number"
        case 5:
            raise SandboxError("there is none")
        case 6:
            await asyncio.sleep(60)
        case 9:
            raise ExceptionGroup("unhandled errors in a TaskGroup", [SandboxError("there is none")])
        case 7:
            episode.trajectories = lambda root: 1 // 0
        case 8:

            async def close() -> None:
                raise OSError("it is open")

            episode.env("agentrl/Calculator-v0").close = close
    return 1.0


REASONS = ["error", "exit", "cancelled", "no_model_call", "bad_reward", "sandbox", "timeout", "trajectories", "close"]
REASONS += ["sandbox"]
"""A task group raises the one error of its tasks in a group."""


def test_the_reason_of_each_end_is_stored_and_counted(nano_format: ChatFormat, tmp_path: Path) -> None:
    reasons = [*REASONS, "finished"]
    result = play(ends, nano_format, tmp_path, groups=len(reasons), episode_timeout_s=4)
    expected = Counter({reason: GROUP_SIZE * count for reason, count in Counter(reasons).items()})
    assert Counter(attempt.reason for attempt in result.attempts) == expected
    assert result.controller.progress.reasons == expected
