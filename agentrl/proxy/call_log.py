"""The model calls of an episode, kept as they happen, so that the episode can start over without making them again.

    request ─► digest ─┬─ in the log ─────────────────────► the logged reply, at once, token for token
                       ├─ sent again, its reply was lost ─► the recorded reply
                       └─ new ────────────────────────────► generated

A request is known by what the engine was asked: ids, images, sampling, tools and the role that asked. Equal requests get
the logged replies in their order. What an episode does not ask again is not part of its record.
"""

from __future__ import annotations

from collections.abc import Sequence

import pydantic_core

from agentrl.engine.protocol import Sampling
from agentrl.proxy.chat_format import Tool
from agentrl.proxy.completion import PreparedCompletion
from agentrl.proxy.session import Prompt
from agentrl.record.recorded_choice import recorded_choice
from agentrl.record.rolling_digest import RollingDigest


def request_digest(prompt: Prompt, sampling: Sampling, tools: Sequence[Tool] | None, role: str) -> str:
    """Return a digest that tells one request from another."""
    return prompt.digest.with_bytes(pydantic_core.to_json([prompt.images, vars(sampling), tools, role])).value.hex()


def number_choices(calls: Sequence[PreparedCompletion]) -> None:
    """Give the prompts of a request one digest, and number their replies one after another."""
    if len(calls) == 1:
        return
    digest = RollingDigest().with_text("".join(call.digest for call in calls)).value.hex()
    for position, call in enumerate(calls):
        call.digest, call.first_choice = digest, position * call.request.choices // len(calls)


def replay_logged(calls: Sequence[PreparedCompletion]) -> None:
    """Take the replies to a request, one call for each of its prompts, from the session's call log, as far as it has them.

    All that a request asks for is one entry of the log, so that equal prompts in it are told apart, and it has one id, which the
    client is told.
    """
    call_log = calls[0].session.call_log
    logged = call_log.take(calls[0].digest) if call_log is not None else {}
    for call in calls:
        call.recorded = {index - call.first_choice: choice for index, choice in logged.items()}
        call.id = next((choice.completion_id for choice in logged.values()), calls[0].id)


def reuse_reply(calls: Sequence[PreparedCompletion]) -> None:
    """Take the replies to a request that its client sends again from the record, where no later call builds on them.

    They were written to a socket, but a client may fail to read one, and then nobody did anything after it.
    """
    call = calls[0]
    if len(calls) > 1 or call.recorded or call.request.top_logprobs:
        return
    turns = call.session.record.turns
    last = next((turn for turn in reversed(turns) if turn.request == call.digest), None)
    if last is None:
        return
    lost = [turn for turn in turns if turn.completion_id == last.completion_id]
    if len(lost) == call.request.choices and not any(turn.parent is one for turn in turns for one in lost):
        call.recorded = {turn.choice_index: recorded_choice(turn) for turn in lost}
        call.id, call.repeated = last.completion_id, True
