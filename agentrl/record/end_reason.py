"""`EndReason`: how an attempt at an episode ended, in one word, which is stored with it, counted and shown.

    workflow returned a reward ──► FINISHED            anything else ──► a failure, tried again `rollout.retries` times

docs/episodes.md lists them with what to do about each.
"""

from __future__ import annotations

from enum import StrEnum

from agentrl.errors import BadRewardError, EpisodeTimeoutError, RewardFunctionError, SandboxError


class EndReason(StrEnum):
    """The reason why an attempt at an episode ended. All but FINISHED are failures, with a text beside them."""

    FINISHED = "finished"
    """The workflow returned a reward, and the model was called."""
    ERROR = "error"
    """The workflow raised an exception that no other reason names."""
    TIMEOUT = "timeout"
    """It took longer than its bound, and ended when it was cancelled."""
    HUNG = "hung"
    """It, or what it opened, did not end when it was cancelled, and was left behind."""
    CANCELLED = "cancelled"
    """Its own code cancelled it."""
    EXIT = "exit"
    """It raised SystemExit or KeyboardInterrupt."""
    NO_MODEL_CALL = "no_model_call"
    """It returned without calling the model."""
    BAD_REWARD = "bad_reward"
    """It returned something that is no reward, or a function of its rubric failed; a session of `agentrl serve` was given none."""
    SANDBOX = "sandbox"
    """A sandbox could not be had, or was lost."""
    CLOSE = "close"
    """What it opened, environments and sandboxes, could not be closed."""
    TRAJECTORIES = "trajectories"
    """The function that chooses what is trained on failed."""
    NO_SESSION = "no_session"
    """The proxy has as many sessions open as it may."""
    WORKER = "worker"
    """Its worker process was lost too often, or could not be sent what it needs."""
    BAD_TASK = "bad_task"
    """Its task cannot be used, so it did not begin."""
    REJECTED = "rejected"
    """It finished, but its record cannot be trained on."""


_REASONS: tuple[tuple[tuple[type[BaseException], ...], EndReason], ...] = (
    ((EpisodeTimeoutError,), EndReason.TIMEOUT),
    ((BadRewardError, RewardFunctionError), EndReason.BAD_REWARD),
    ((SandboxError,), EndReason.SANDBOX),
    ((SystemExit, KeyboardInterrupt), EndReason.EXIT),
)


def reason_of(error: BaseException) -> EndReason:
    """Return the reason that what a workflow raised is. A group of one exception, as task groups raise it, is that exception."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return next((reason for types, reason in _REASONS if isinstance(error, types)), EndReason.ERROR)


def reasons_text(counts: dict[str, int]) -> str:
    """Return how often each reason for a failure came, most often first, as a line shows it: " (3 timeout, 1 error)"."""
    failures = sorted((-count, reason) for reason, count in counts.items() if reason != EndReason.FINISHED and count)
    return f" ({', '.join(f'{-count} {reason}' for count, reason in failures)})" if failures else ""
