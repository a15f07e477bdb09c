"""The answers of the actors on the nodes: each is waited for within a bound, and a lost actor is an error that says what it was to do."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import anyio
from ray.exceptions import RayActorError, RayError

from agentrl.errors import ClusterError, NodeLostError, one_line

CALL_TIMEOUT_S = 60.0
"""Bound of a call of an actor that has nothing to copy."""
COPY_TIMEOUT_S = 1800.0
"""Bound of one that has."""
Answer = TypeVar("Answer")


async def answered(call: Awaitable[Answer], what: str, timeout_s: float = CALL_TIMEOUT_S) -> Answer:
    """Return what an actor answers.

    Args:
        call: The call, which is on its way.
        what: What it is for.
        timeout_s: How long it may take.

    Raises:
        NodeLostError: The actor or its node is gone.
        ClusterError: It does not answer in time, or with an error.
    """
    try:
        with anyio.fail_after(timeout_s):
            return await call
    except TimeoutError:
        raise ClusterError(f"{what}: no answer within {timeout_s:g} s") from None
    except RayActorError as error:
        raise NodeLostError(f"{what}: {one_line(error)}") from error
    except RayError as error:
        raise ClusterError(f"{what}: {one_line(error)}") from error
