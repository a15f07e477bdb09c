"""A run with a conversation in it, to be looked at: two groups, the second with whatever text a model or a task may write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.proxy import ChatFormat
from agentrl.record.end_reason import EndReason
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from tests.recorded_run import record_run

ASKED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3?"},
]
CALLING = (
    '<think>\nadd\n</think>\n\nI add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>'
)
ANSWER = "<think>\nsum\n</think>\n\nIt is 5.<|im_end|>"
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "5"}
CONVERSATION = 13
"""The id of the episode that holds a conversation."""


def said(chat_format: ChatFormat, text: str, version: int = 0) -> Generation:
    """A reply whose last token is of the next version of the weights."""
    ids = chat_format.tokenizer.encode(text)
    spans = [VersionSpan(version, 0, len(ids) - 1), VersionSpan(version + 1, len(ids) - 1, len(ids))]
    return Generation(output_ids=ids, logprobs=[-0.25] * len(ids), versions=spans, finish="stop")


def conversation(
    chat_format: ChatFormat, asked: list[dict[str, Any]], result: dict[str, Any], written: str = ""
) -> TokenRecord:
    """A call of a tool, its result, and an answer. `written` is in all that the answer's client names, and follows it."""
    record, prompt = TokenRecord(), chat_format.render(asked, None).ids
    call = said(chat_format, CALLING)
    first = record.add("one", None, prompt, call, 1.0)
    extended = chat_format.extend(prompt, call.output_ids, [result], None)
    assert extended is not None
    second = record.add("two", first, extended.ids, said(chat_format, written + ANSWER), 1.0)
    if written:
        second.role, second.model, second.alterations = written, written, {written: written}
    return record


def make_shown_run(
    run_dir: Path,
    chat_format: ChatFormat,
    asked: list[dict[str, Any]] = ASKED,
    result: dict[str, Any] = RESULT,
    error: str = "it broke",
    written: str = "",
) -> Path:
    """Twelve episodes of random tokens; a conversation, and a failure, in a group of their own."""
    record_run(run_dir, steps=2)
    (run_dir / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "reward_mean": step / 4, "loss": float("nan")}) + "\n" for step in (1, 2))
    )
    with Store(run_dir / "store.sqlite") as store:
        ended = Outcome(
            reason=EndReason.FINISHED,
            reward=3.0,
            metrics={"x": 1.5},
            record=conversation(chat_format, asked, result, written),
        )
        failed = Outcome(reason=EndReason.ERROR, error=error)
        store.write([OpenGroup(4, 0, 4, version=0), InsertEpisode(4, 0, 0, ended), InsertEpisode(4, 1, 0, failed)])
        store.write([CloseGroup(4, rejected=written or "too few episodes")])
    return run_dir
