"""What is taken out of a run is the run's: conversations that train the same tokens, a page that stands alone, lines of JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl import open_run
from agentrl.evaluation.figures import summarise
from agentrl.proxy import ChatFormat
from agentrl.record.end_reason import EndReason
from agentrl.record.trajectory import TokenRecord
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.tasks.conversation_rows import read_conversation
from agentrl.trainer.conversations import training_sequences
from agentrl.viewer.export import conversations, exported
from agentrl.viewer.queries import ShownRun
from tests.viewer.shown_run import ASKED, CONVERSATION, RESULT, make_shown_run, said


@pytest.fixture
def shown(tmp_path: Path, nano_format: ChatFormat) -> ShownRun:
    return ShownRun(make_shown_run(tmp_path / "run", nano_format))


def export(shown: ShownRun, form: str, *numbers: int) -> str:
    episodes = [open_run(shown.path).episode(number) for number in numbers]
    return b"".join(exported(form, shown, episodes)).decode()


def test_an_exported_conversation_is_read_back_and_learned_from_as_it_was_said(
    shown: ShownRun, nano_format: ChatFormat
) -> None:
    row = json.loads(export(shown, "sft", CONVERSATION))
    messages, _, weights, _ = read_conversation(row, "here")
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [messages[index]["content"] for index in (0, 1, 3, 4)] == [
        *(message["content"] for message in ASKED),
        RESULT["content"],
        "It is 5.",
    ]
    (call,) = messages[2]["tool_calls"]
    assert (messages[2]["content"], messages[2]["reasoning_content"]) == ("I add.", "add")
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 2})
    assert messages[3]["tool_call_id"] == call["id"]
    assert weights == [0, 0, 1, 0, 1]
    (sequence,) = training_sequences(row, nano_format, "here")
    last = open_run(shown.path).episode(CONVERSATION).record.turns[-1]
    assert nano_format.decode(sequence.token_ids.tolist()) == nano_format.decode(last.token_ids())


def test_a_reply_without_a_thought_is_learned_without_the_empty_one_that_the_template_writes(
    shown: ShownRun, nano_format: ChatFormat
) -> None:
    record = TokenRecord()
    turn = record.add("one", None, nano_format.render(ASKED, None).ids, said(nano_format, "It is 5.<|im_end|>"), 1.0)
    ended = Outcome(reason=EndReason.FINISHED, reward=1.0, record=record)
    with Store(shown.path / "store.sqlite") as store:
        store.write([OpenGroup(5, 0, 5, version=0), InsertEpisode(5, 0, 0, ended)])
    (episode,) = open_run(shown.path).episodes(group=5)
    row = json.loads(export(shown, "sft", episode.id))
    (sequence,) = training_sequences(row, nano_format, "here")
    assert sequence.token_ids.tolist() == turn.token_ids()
    assert nano_format.decode(sequence.token_ids[sequence.loss_mask].tolist()) == "It is 5.<|im_end|>"


def turn(index: int, parent: int | None, text: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "text": f"asked {index}", "thought": None, "tool_calls": []}
    reply = {"role": "assistant", "text": text, "thought": None, "tool_calls": [], "tokens": {"text": [text]}}
    facts = {"index": index, "parent": parent, "left_out": False, "trained": True}
    return {**facts, "messages": [message], "reply": reply, **fields}


def test_each_branch_is_a_conversation_and_no_reply_is_learned_twice() -> None:
    shared = [turn(0, None, "a"), turn(1, 0, "b"), turn(2, 0, "c"), turn(3, None, "title", left_out=True)]
    first, second = conversations(shared)
    assert [message["content"] for message in first["messages"]] == ["asked 0", "a", "asked 1", "b"]
    assert [message.get("weight") for message in first["messages"]] == [None, 1, None, 1]
    assert [message["content"] for message in second["messages"]] == ["asked 0", "a", "asked 2", "c"]
    assert [message.get("weight") for message in second["messages"]] == [None, 0, None, 1]
    unknown = turn(0, None, "a")
    unknown["messages"][0]["role"] = "?"
    assert [*conversations([unknown])] == []


def test_a_page_needs_no_script_and_no_other_file(shown: ShownRun) -> None:
    page = export(shown, "html", CONVERSATION, 14)
    assert page.startswith("<!doctype html>")
    assert re.findall(r"(?:src|href)=|<script|@import|url\(", page) == []
    for text in ("What is 2 + 3?", "add({", "&#34;a&#34;: 2", "it broke", "reward 3", "thought"):
        assert text in page
    tokens = sum(len(turn.output_ids) for turn in open_run(shown.path).episode(CONVERSATION).record.turns)
    assert page.count('<span class="t') == tokens
    assert (
        len(re.findall(r'class="t\d cut"', page)) == 2
    )  # an update of the weights came before the last token of each reply


def test_a_line_of_json_has_what_the_api_says_without_the_ids_of_prompts(shown: ShownRun) -> None:
    (line,) = export(shown, "jsonl", CONVERSATION).splitlines()
    read = json.loads(line)
    assert read["episode"]["reward"] == 3.0
    assert [turn["reply"]["text"] for turn in read["turns"]] == ["I add.", "It is 5."]
    assert all("prompt" not in turn for turn in read["turns"])


def test_a_notebook_shows_a_run_an_episode_and_an_evaluation_in_a_frame_of_the_same_page(shown: ShownRun) -> None:
    run = open_run(shown.path)
    episode = run.episode(CONVERSATION)
    for thing, text in (
        (run, "2 of "),
        (episode, "What is 2 + 3?"),
        (summarise([[episode]], [""], 1.0), "mean reward"),
    ):
        html = thing._repr_html_()
        assert html.startswith('<iframe sandbox=""')
        assert text in html
        assert "<script" not in html
