"""Rows to learn from: those of common forms are read alike, and all others are refused with the field at fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TaskFileError
from agentrl.tasks.conversation_rows import CONVERSATION, read_conversation
from agentrl.tasks.tasks import open_tasks

USER = {"role": "user", "content": "2 + 3?"}
REPLY = {"role": "assistant", "content": "5"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def call(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"x": "é"}}, **fields}]}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "developer", "content": "Add."}, USER, REPLY]},
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Add."}]},
                USER,
                {**REPLY, "name": None},
            ]
        },
        {"system": "Add.", "messages": [USER, REPLY], "tools": None},
        {"system": "Add.", "conversations": [{"from": "human", "value": "2 + 3?"}, {"from": "gpt", "value": "5"}]},
        {"system": "Add.", "conversations": [USER, REPLY]},
        {
            "system": "Add.",
            "messages": [{"from": "human", "content": "2 + 3?"}, {"role": "bard", "value": "5", "audio": []}],
        },
    ],
)
def test_a_conversation_is_read_in_its_common_forms(row: dict[str, Any]) -> None:
    messages, tools, weights, _ = read_conversation(row, "here")
    assert messages == [{"role": "system", "content": "Add."}, USER, REPLY]
    assert (tools, weights) == ([], [0, 0, 1])


def test_a_weight_of_0_is_context_that_is_not_learned() -> None:
    row = {"messages": [USER, {**REPLY, "weight": 0}, USER, {**REPLY, "weight": 1}, USER, {**REPLY, "weight": None}]}
    assert read_conversation(row, "here")[2] == [0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("name", ["loss", "train", "training"])
def test_other_trainers_names_of_a_weight_are_read(name: str) -> None:
    assert read_conversation({"messages": [USER, {**REPLY, name: False}, USER, REPLY]}, "here")[2] == [0, 0, 0, 1]


def test_a_thought_is_read_under_its_other_name() -> None:
    messages, *_ = read_conversation({"messages": [USER, {**REPLY, "thinking": "hm"}]}, "here")
    assert messages[1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("call_tIxbLzDBfWkRo5yPBKTg7aLm", "call00100"),
        ("toolu_01A09q90qw90lq917835lq9", "call00100"),
        ("VvvODy9mT", "VvvODy9mT"),
        ("functions.add:0", "functions.add:0"),
    ],
)
def test_only_ids_that_a_model_says_itself_are_kept(given: str, read: str) -> None:
    """The templates of Mistral take nine letters and digits, and Kimi's show FUNCTION:NUMBER; those of a server are no words of a model."""
    row = {"messages": [USER, call(id=given), {"role": "tool", "tool_call_id": given, "content": "5"}, REPLY]}
    messages, *_ = read_conversation(row, "here")
    assert [messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]] == [read, read]


def test_a_result_that_is_wrapped_as_a_template_wraps_it_is_not_wrapped_twice() -> None:
    """As in the rows of Hermes, also where several results are one message."""
    said = [("human", "?"), ("gpt", "<tool_call>"), ("tool", "<tool_response>\n5\n</tool_response>")]
    messages, *_ = read_conversation({"conversations": [{"from": kind, "value": text} for kind, text in said]}, "here")
    assert messages[2]["content"] == "5"


def test_results_without_ids_are_those_of_the_calls_of_their_names_and_then_in_turn() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("add", "now", "add")]
    results = [{"role": "tool", "content": "?", **name} for name in ({"name": "now"}, {}, {"name": "add"})]
    messages, *_ = read_conversation({"messages": [USER, {"role": "assistant", "tool_calls": calls}, *results]}, "here")
    assert [message["tool_call_id"] for message in messages[2:]] == ["call00101", "call00100", "call00102"]


@pytest.mark.parametrize("arguments", ["", None, {}])
def test_a_call_without_arguments_has_an_empty_object_of_them(arguments: Any) -> None:
    said = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}
    messages, *_ = read_conversation({"messages": [USER, said], "tools": " " if arguments == "" else "null"}, "here")
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}


def test_several_calls_of_sharegpt_at_once_are_read() -> None:
    calls = [{"name": "add", "arguments": {"x": 1}}, {"name": "add", "arguments": {"x": 2}}]
    said = [("human", "?"), ("function_call", json.dumps(calls)), ("observation", "1"), ("observation", "2")]
    messages, *_ = read_conversation({"conversations": [{"from": kind, "value": text} for kind, text in said]}, "here")
    assert [call["id"] for call in messages[1]["tool_calls"]] == [message["tool_call_id"] for message in messages[2:]]


@pytest.mark.parametrize("result", ["observation", "tool_response", "tool", "function"])
@pytest.mark.parametrize("called", ["function_call", "tool_call"])
def test_calls_of_sharegpt_and_ms_swift_are_tool_calls_with_their_results(called: str, result: str) -> None:
    call_ = '{"name": "add", "arguments": {"x": 2}}'
    said = [("human", "2 + 3?"), (called, call_), (result, "5"), ("gpt", "5")]
    row = {"conversations": [{"from": kind, "value": value} for kind, value in said]}
    messages, tools, weights, _ = read_conversation({**row, "tools": json.dumps([TOOL["function"]])}, "here")
    function = {"name": "add", "arguments": '{"x": 2}'}
    assert messages[1]["tool_calls"] == [{"id": "call00100", "type": "function", "function": function}]
    assert messages[2] == {"role": "tool", "tool_call_id": "call00100", "content": "5"}
    assert (tools, weights) == ([TOOL], [0, 1, 0, 1])


def test_a_result_of_calls_that_are_text_of_the_reply_needs_no_id() -> None:
    """As in the rows of Hermes and ToolACE."""
    said = [("human", "?"), ("gpt", "[add(x=1)]"), ("tool", "1"), ("tool", "2"), ("gpt", "5")]
    messages, *_ = read_conversation({"conversations": [{"from": kind, "value": text} for kind, text in said]}, "here")
    assert messages[2:4] == [{"role": "tool", "tool_call_id": "", "content": text} for text in "12"]


def test_tools_are_read_as_text_and_calls_with_what_rows_leave_out() -> None:
    """Arguments as an object, and no ids."""
    result = {"role": "tool", "content": "5", "tool_call_id": None}
    row = {"messages": [USER, call(), result, call(id="a"), {**result, "tool_call_id": "a"}, REPLY], "tools": [TOOL]}
    messages, tools, *_ = read_conversation({**row, "tools": json.dumps(row["tools"])}, "here")
    assert tools == [TOOL]
    assert messages[1]["tool_calls"][0] == {
        "id": "call00100",
        "type": "function",
        "function": {"name": "add", "arguments": '{"x": "é"}'},
    }
    assert [messages[index]["tool_call_id"] for index in (2, 4)] == ["call00100", "call00300"]
    assert read_conversation(row, "here")[0] == messages


def test_the_calls_of_before_there_were_tools_are_calls_of_tools() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}}
    row = {
        "messages": [USER, old, {"role": "function", "name": "add", "content": "5"}],
        "functions": [TOOL["function"]],
    }
    messages, tools, weights, _ = read_conversation(row, "here")
    assert tools == [TOOL]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    assert messages[2]["role"] == "tool"
    assert weights == [0, 1, 0]


@pytest.mark.parametrize(
    ("given", "learned"),
    [
        ({}, True),
        ({"empty_thoughts": True}, True),
        ({"empty_thoughts": None}, True),
        ({"empty_thoughts": False}, False),
    ],
)
def test_a_row_says_whether_empty_thoughts_are_learned(given: dict[str, Any], learned: bool) -> None:
    assert read_conversation({"messages": [USER, REPLY], **given}, "here")[3] is learned


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        *(
            ({"messages": [USER, REPLY], "empty_thoughts": no}, f"empty_thoughts = {no!r}: write true or")
            for no in ("false", 2)
        ),
        ({"chosen": [USER, REPLY], "rejected": [USER]}, 'holds no "messages"; it has chosen, rejected: write'),
        ({"messages": [USER, REPLY], "rejected_response": "6"}, "rejected_response is not read; leave it out"),
        ({"messages": [USER, REPLY], "image": "a.png"}, "image is not read; leave it out"),
        ({"messages": "2 + 3?"}, "line 2 is no conversation"),
        ({"messages": [USER]}, "has no message of the assistant to learn from"),
        ({"messages": [REPLY, USER]}, "has no message of the assistant to learn from"),
        ({"messages": [USER, {**REPLY, "weight": 0}]}, "has no message of the assistant to learn from"),
        ({"messages": [USER, {**REPLY, "weight": 0.5}]}, r"messages\.1\.weight = 0\.5"),
        ({"messages": [{"content": "5"}]}, r"Invalid 'messages\.0\.role'"),
        ({"messages": [USER, {**REPLY, "role": "model"}, REPLY]}, r"Invalid 'messages\.1\.role'"),
        *(
            ({"messages": [USER, {**REPLY, "content": no}]}, r"Invalid 'messages\.1\.content[.0]*'")
            for no in (5, {}, [5])
        ),
        *(({"messages": [USER, {**REPLY, "content": no}]}, "a reply to learn from says nothing") for no in (None, "")),
        *(
            (
                {"messages": [USER, {**REPLY, name: value}]},
                rf"messages\.1\.{name} is not read; a message has role, content",
            )
            for name, value in (("text", "5"), ("reasonning_content", "?"), ("mask", False), ("train_detail", [{}]))
        ),
        *(
            ({"messages": [USER, REPLY], name: value}, f"{name} is not read; leave it out")
            for name, value in (("loss", False), ("images", ["a.png"]), ("mask", "User"))
        ),
        ({"messages": [USER, REPLY], "label": False}, "to learn from: by its roles, weights or label"),
        ({"messages": [USER, {**REPLY, "loss": "no"}]}, r"messages\.1\.loss = 'no'"),
        ({"system": "!", "conversations": [{"from": "critic", "value": "5"}]}, r"Invalid 'messages\.0\.role'"),
        ({"conversations": [{"from": "human", "value": 5}]}, r"Invalid 'messages\.0\.content'"),
        ({"conversations": [{"from": "human"}]}, r"Invalid 'messages\.0'.*needs 'content'"),
        (
            {"conversations": [{"from": "human", "value": "?"}, {"from": "tool_call", "value": "add"}]},
            r"\.1 is neither",
        ),
        ({"messages": [USER, REPLY, {"role": "tool_call", "content": "{}"}]}, r"messages\.2 is a call that follows"),
        (
            {"instruction": "Add.", "input": "", "output": "5"},
            'holds no "messages"; it has instruction, input, output: write',
        ),
        (
            {"messages": [{**USER, "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, REPLY]},
            "has an image",
        ),
        ({"messages": [USER, REPLY], "tools": "add(x)"}, "tools is neither a list nor JSON"),
        ({"messages": [[USER, REPLY]]}, "messages must be a list of objects"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": "add"}]},
            r"messages\.1\.tool_calls is neither a list nor",
        ),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "x"}}]},
                ]
            },
            r"messages\.1\.tool_calls\.0: the arguments of add are no JSON object: x",
        ),
        ({"messages": [USER, REPLY], "tools": [{"title": "add"}]}, r"Invalid 'tools\.0': .* needs 'name'"),
        ({"messages": [USER, REPLY], "tools": [{"type": "web_search"}]}, r"tools\.web_search cannot be shown"),
        ({"messages": [USER, {**REPLY, "tool_calls": [{"x": 1}]}]}, r"messages\.1\.tool_calls\.0 needs a name"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_line_and_field(
    tmp_path: Path, row: dict[str, Any], complaint: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps({'messages': [USER, REPLY]})}\n{json.dumps(row)}\n")
    with pytest.raises(TaskFileError, match=rf"rows\.jsonl, line 2.*{complaint}|rows\.jsonl, {complaint}"):
        open_tasks(str(tmp_path / "rows.jsonl"), CONVERSATION)
